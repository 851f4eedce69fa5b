"""/v1/completions: texts that go on from prompts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from surefoot.results import Choice, Chunk, Result
from surefoot.sampling import TopLogprobs
from surefoot.server import listings
from surefoot.server.answers import (
    Completion,
    CompletionChoice,
    ListLogprobs,
    heading,
    metrics,
    usage,
)
from surefoot.server.bodies import CompletionBody
from surefoot.server.fields import ask
from surefoot.server.generating import (
    RESPONSES,
    check_model,
    check_room,
    encode,
    last_event,
    no_usage,
    off_loop,
    respond,
)
from surefoot.server.listings import Offsets
from surefoot.server.service import Service, service
from surefoot.server.stream import Event, Held
from surefoot.text import Tokenizer
from surefoot.types import FinishReason, SurefootError

router = APIRouter()


@dataclass(frozen=True, slots=True)
class Prompt:
    """text: as an echo repeats it. as_text: whether it came as text."""

    text: str
    ids: tuple[int, ...]
    as_text: bool


@router.post("/v1/completions", response_model=Completion, responses=RESPONSES)
async def complete(
    body: CompletionBody, request: Request, served: Annotated[Service, Depends(service)]
) -> Response:
    """Continues one prompt or several."""
    check_model(body, served)
    body.check()
    _check_places(len(body.prompts), body, served)
    prompts = await off_loop(
        len(await request.body()), lambda: [_prompt(given, body, served.tokenizer) for given in body.prompts]
    )
    for prompt in prompts:
        check_room("prompt", prompt.ids, served)
    asks = [
        ask(
            body,
            served,
            prompt.ids,
            max_tokens=body.limit,
            n=body.generated,
            logprobs=body.kept_logprobs,
            prompt_logprobs=body.prompt_lists,
            grammar=body.constraint,
        )
        for prompt in prompts
    ]
    shape = Completions(body, served, prompts, [made.params.seed or 0 for made in asks], request)
    return await respond(request, body, served, asks, shape)


def _check_places(prompts: int, body: CompletionBody, served: Service) -> None:
    """Raises SurefootError for more answers than the queue ever has room for."""
    answers, most = prompts * body.generated, served.engine.places
    if prompts > 1 and answers > most:
        raise SurefootError(
            f"prompt: {prompts} prompts are too many, at {body.generated} answers each; allowed are {most} "
            "answers in a request"
        )


def _prompt(given: str | list[int], body: CompletionBody, tokenizer: Tokenizer) -> Prompt:
    if isinstance(given, str):
        return Prompt(given, encode("prompt", tokenizer, given, add_special=True), as_text=True)
    text = tokenizer.decode(given, skip_special=False) if body.echo else ""
    return Prompt(text, tuple(given), as_text=False)


class Completions:
    """The answers to one request, whole or in pieces. seeds: of each prompt."""

    def __init__(
        self,
        body: CompletionBody,
        served: Service,
        prompts: Sequence[Prompt],
        seeds: Sequence[int],
        request: Request,
    ) -> None:
        self._body, self._tokenizer = body, served.tokenizer
        self._prompts, self._seeds = prompts, seeds
        self._heading = heading("cmpl", request.state.request_id, served.names[0])
        places = [place for place in range(len(prompts)) for _ in range(body.answers)]
        self._held = [Held(self._echo(place)) for place in places]
        self._offsets = [self._offsets_of(place) for place in places]
        self._begun = [False] * len(places)

    def whole(self, results: Sequence[Result]) -> Event:
        choices = [
            self._whole_choice(place, rank, result, choice)
            for place, result in enumerate(results)
            for rank, choice in enumerate(_best(result.choices, self._body.answers))
        ]
        more = {"metrics": metrics(results)} if self._body.include_metrics else {}
        return self._piece(choices, {"usage": usage(results), **more})

    def write(self, place: int, chunk: Chunk) -> Iterator[Event]:
        index = place * self._body.answers + chunk.choice
        held = self._held[index]
        held.add(chunk)
        if not held.text and not chunk.finish_reason:
            return
        self._held[index] = Held()
        choice = self._choice(place, index, held, self._offsets[index], chunk.finish_reason)
        if not self._begun[index]:
            self._begun[index] = True
            self._add_prompt(choice, place, held.prompt or ())
        yield self._piece([choice], no_usage(self._body))

    def end(self, results: Sequence[Result]) -> Iterator[Event]:
        last = last_event(self._body, results)
        if last is not None:
            yield self._piece([], last)

    def _piece(self, choices: list[CompletionChoice], more: Mapping[str, Any]) -> Event:
        return {**self._heading, "object": "text_completion", "choices": choices, **more}

    def _whole_choice(self, place: int, rank: int, result: Result, choice: Choice) -> CompletionChoice:
        tokens = list(zip(choice.token_ids, choice.logprobs or (), strict=False))
        held = Held(self._echo(place) + choice.text, list(choice.token_ids), tokens)
        index = place * self._body.answers + rank
        found = self._choice(place, index, held, self._offsets_of(place), choice.finish_reason)
        self._add_prompt(found, place, result.prompt_logprobs or ())
        return found

    def _choice(
        self, place: int, index: int, held: Held, offsets: Offsets, reason: FinishReason | None
    ) -> CompletionChoice:
        lists = None
        if self._body.logprobs is not None:
            lists = listings.lists(self._tokenizer, held.tokens, offsets.take(held.ids))
        choice = CompletionChoice(index=index, text=held.text, logprobs=lists, finish_reason=reason)
        if self._body.return_token_ids:
            choice["token_ids"] = held.ids
        if reason:
            choice["seed"] = self._seeds[place]
        return choice

    def _add_prompt(self, choice: CompletionChoice, place: int, listed: Sequence[TopLogprobs | None]) -> None:
        """What a choice tells of its prompt beside its text."""
        body, prompt, lists = self._body, self._prompts[place], choice["logprobs"]
        if body.return_token_ids:
            choice["prompt_token_ids"] = list(prompt.ids)
        if body.prompt_logprobs is not None:
            choice["prompt_logprobs"] = listings.by_id(
                self._tokenizer, prompt.ids, listed, body.prompt_logprobs
            )
        if body.echo and lists:
            offsets = listings.prompt_offsets(self._tokenizer, prompt.text, prompt.ids, prompt.as_text)
            own = listings.prompt_lists(self._tokenizer, prompt.ids, listed, body.logprobs or 0, offsets)
            choice["logprobs"] = _joined(own, lists)

    def _offsets_of(self, place: int) -> Offsets:
        return Offsets(self._tokenizer, len(self._echo(place)))

    def _echo(self, place: int) -> str:
        return self._prompts[place].text if self._body.echo else ""


def _best(choices: Sequence[Choice], count: int) -> list[Choice]:
    """All, or the best of them, the best first; of equals the one that was asked for first."""
    if len(choices) == count:
        return list(choices)
    return sorted(choices, key=_mean_logprob, reverse=True)[:count]


def _mean_logprob(choice: Choice) -> float:
    listed = choice.logprobs or ()
    return sum(place.chosen for place in listed) / len(listed)


def _joined(first: ListLogprobs, second: ListLogprobs) -> ListLogprobs:
    return ListLogprobs(
        tokens=first["tokens"] + second["tokens"],
        token_logprobs=first["token_logprobs"] + second["token_logprobs"],
        top_logprobs=first["top_logprobs"] + second["top_logprobs"],
        text_offset=first["text_offset"] + second["text_offset"],
    )
