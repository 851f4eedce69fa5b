"""Every token of an answer with the plain server's list for its place, whatever that server offers for it.

The prefix must be the very tokens that were emitted, and sampled text often isn't split as a tokenizer would
split it. Where ids are known they are sent; where only text is, a place counts only while the server's count
of the prompt's tokens, or their names, say that it read the same ones. Whether a place counts never depends
on the token that stands there, else the lists would no longer be fair odds for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from surefoot.audit.servers.answers import Answer, Choice, Place, parse, parse_prompt
from surefoot.audit.servers.asking import Call, Server
from surefoot.audit.servers.dialect import tokenize
from surefoot.audit.servers.difference import find_offsets, is_end, text_bytes

_END = Choice("", float("nan"))  # an end of sequence that the server does not name


@dataclass(frozen=True)
class Sample:
    """One sampled answer. prompt: its number; number: of the sample."""

    prompt: int
    number: int
    answer: Answer


class Scorer:
    """Scores answers of either server under the plain one."""

    def __init__(self, plain: Server, prompts: Sequence[str]) -> None:
        self._plain, self._prompts = plain, prompts
        self._ids: dict[int, tuple[int, ...] | None] = {}

    def learn(self, samples: Sequence[Sample]) -> None:
        """Takes the prompts' ids from the plain server's own answers, where it tells them."""
        for sample in samples:
            if sample.answer.prompt_ids is not None:
                self._ids.setdefault(sample.prompt, sample.answer.prompt_ids)

    def possible(self, answer: Answer) -> str | None:
        """Why an answer like this can't be scored; None if it can."""
        dialect = self._plain.dialect
        if not self._plain.live:
            return "the plain server is only a recording"
        if dialect.scoring == "none":
            return "the plain server offers no log probabilities for a given text"
        if answer.emitted is None:
            return "the speculative server tells neither token ids nor tokens"
        if dialect.chat and (answer.ids is None or not dialect.by_id):
            return "a chat's tokens can only be scored by their ids, which a server doesn't tell or take"
        return None

    def score(self, samples: Sequence[Sample]) -> list[list[Place]]:
        """For each answer its tokens and their lists, as many as could be told; an end of sequence is one."""
        if self._plain.dialect.scoring == "step":
            return self._step(samples)
        payloads = self._plain.answers([self._whole_call(sample) for sample in samples])
        scored: list[list[Place]] = []
        unread = []
        for at, (sample, payload) in enumerate(zip(samples, payloads, strict=True)):
            places = None if payload is None else self._whole(sample, payload)
            if payload is not None and places is None:
                unread.append(at)
            scored.append(places or [])
        if not self._plain.dialect.chat:
            for at, places in zip(unread, self._step([samples[at] for at in unread]), strict=True):
                scored[at] = places
        return scored

    def _prompt_ids(self, number: int) -> tuple[int, ...] | None:
        dialect = self._plain.dialect
        if number not in self._ids:

            def ask(path: str, body: dict[str, Any]) -> dict[str, Any]:
                return self._plain.ask(path, body) or {}

            found = None
            if dialect.tokenizes and not dialect.chat:
                found = tokenize(ask, dialect, self._prompts[number])
            self._ids[number] = None if found is None else tuple(found)
        return self._ids[number]

    def _by_id(self, sample: Sample) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """The prompt's and the answer's ids, if they are known and may be sent."""
        before = self._prompt_ids(sample.prompt) if self._plain.dialect.by_id else None
        return None if before is None or sample.answer.ids is None else (before, sample.answer.ids)

    def _call(self, sample: Sample, place: int, prompt: str | list[int], **more: Any) -> Call:
        body = self._plain.dialect.continuation(prompt, **more)
        return Call(f"score {place}", sample.prompt, sample.number, "/v1/completions", body)

    def _whole_call(self, sample: Sample) -> Call:
        ids = self._by_id(sample)
        whole = self._prompts[sample.prompt] + sample.answer.text if ids is None else [*ids[0], *ids[1]]
        if self._plain.dialect.scoring == "echo":
            return self._call(sample, -1, whole, echo=True)
        return self._call(sample, -1, whole, prompt_logprobs=self._plain.dialect.listed)

    def _whole(self, sample: Sample, payload: dict[str, Any]) -> list[Place] | None:
        """Cut out of a whole text's lists; None where the server read other tokens than were emitted."""
        emitted = _visible(sample.answer)
        answer = parse(payload)
        told = answer.prompt_tokens
        read: Sequence[Place | None] | None = parse_prompt(payload)
        after: Sequence[Place] = answer.places or ()
        if read is None:  # an echo: the text's own tokens, and the one that was generated behind it
            size = len(after) - 1 if told is None else told
            read, after = after[:size], after[size:]
        ids = self._by_id(sample)
        if ids is not None and len(read) != len(ids[0]) + len(ids[1]):
            return None
        tail = [place for place in read[len(read) - len(emitted) :] if place is not None]
        if len(tail) < len(emitted):
            return None
        if ids is None and not all(
            place.token.same(token) for place, token in zip(tail, emitted, strict=True)
        ):
            return None
        return _with_end(sample.answer, tail, after[0].top if after else None)

    def _step(self, samples: Sequence[Sample]) -> list[list[Place]]:
        """One request for every token and one for what follows, all at once."""
        calls = [list(self._steps(sample)) for sample in samples]
        payloads = iter(self._plain.answers([call for some in calls for call in some]))
        return [
            self._stepped(sample, [next(payloads) for _ in some])
            for sample, some in zip(samples, calls, strict=True)
        ]

    def _steps(self, sample: Sample) -> Iterator[Call]:
        ids = self._by_id(sample)
        prefix = b""
        emitted = _visible(sample.answer)
        for place in range(len(emitted) + 1):
            said = self._prompts[sample.prompt] + prefix.decode(errors="replace")
            yield self._call(sample, place, said if ids is None else [*ids[0], *ids[1][:place]])
            if ids is None and place < len(emitted):
                data = emitted[place].data
                if data is None:
                    return
                prefix += data

    def _stepped(self, sample: Sample, payloads: Sequence[dict[str, Any] | None]) -> list[Place]:
        emitted = _visible(sample.answer)
        by_id = self._by_id(sample) is not None
        base: int | None = None
        lists: list[tuple[Choice, ...]] = []
        for place, payload in enumerate(payloads):
            answer = None if payload is None else parse(payload)
            if answer is None or not answer.places:
                break
            if place == 0:
                base = answer.prompt_tokens
            if not by_id and base is not None and answer.prompt_tokens not in (None, base + place):
                break  # the text so far was read as other tokens
            lists.append(answer.places[0].top)
        places = [Place(token, top) for token, top in zip(emitted, lists, strict=False)]
        return _with_end(sample.answer, places, lists[-1] if len(lists) > len(emitted) else None)


def _visible(answer: Answer) -> tuple[Choice, ...]:
    """Its tokens without an end of sequence behind the text."""
    emitted = answer.emitted or ()
    if answer.ids is not None or answer.places is None:
        return emitted
    offsets = find_offsets(answer.places, text_bytes(answer))
    if offsets is None or answer.finish != "stop":
        return emitted
    return emitted[: sum(begin < len(text_bytes(answer)) for begin in offsets)]


def _with_end(answer: Answer, places: list[Place], after: tuple[Choice, ...] | None) -> list[Place]:
    """With the end of sequence where the answer stopped by itself; `after` is the list for its place."""
    named = bool(places) and any(
        choice.same(places[-1].token) and is_end(choice) for choice in places[-1].top
    )
    if answer.finish != "stop" or named or after is None:
        return places
    return [*places, Place(next((choice for choice in after if is_end(choice)), _END), after)]
