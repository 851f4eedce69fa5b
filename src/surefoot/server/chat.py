"""/v1/chat/completions: the next message of a conversation."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from surefoot.results import Choice, Chunk, Result
from surefoot.sampling import TopLogprobs
from surefoot.server import answers, listings
from surefoot.server.answers import (
    AssistantMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatReason,
    ContentLogprobs,
    heading,
    metrics,
    usage,
)
from surefoot.server.bodies import ChatBody
from surefoot.server.call_grammars import required_calls, strict_calls
from surefoot.server.errors import invalid
from surefoot.server.fields import ask
from surefoot.server.generating import (
    RESPONSES,
    check_model,
    check_room,
    encode,
    last_event,
    named,
    no_usage,
    off_loop,
    respond,
)
from surefoot.server.messages import NamedTool, for_template
from surefoot.server.service import Service, service
from surefoot.server.stream import Event, Held
from surefoot.server.tools import CallDelta, Delta, TextDelta, ToolParser
from surefoot.types import Constraint, FinishReason

router = APIRouter()

_CHUNK = {"object": "chat.completion.chunk"}


@router.post("/v1/chat/completions", response_model=ChatCompletion, responses=RESPONSES)
async def chat(body: ChatBody, request: Request, served: Annotated[Service, Depends(service)]) -> Response:
    """Answers a conversation."""
    check_model(body, served)
    body.check()
    prompt = await off_loop(len(await request.body()), lambda: _prompt(body, served))
    check_room("messages", prompt, served)
    with named(body.form):
        form = body.constraints(_form_of_calls(body))
    made = ask(
        body,
        served,
        prompt,
        max_tokens=body.limit or served.max_length - len(prompt),
        n=body.answers,
        logprobs=body.listed,
        prompt_logprobs=body.prompt_logprobs,
        grammar=form,
    )
    return await respond(
        request, body, served, [made], Chat(body, served, prompt, made.params.seed or 0, request)
    )


def _prompt(body: ChatBody, served: Service) -> tuple[int, ...]:
    tools = [tool.model_dump(exclude_none=True) for tool in body.usable_tools]
    if not served.tokenizer.has_chat_template:
        raise invalid("messages: the model has no chat template; use /v1/completions, or an instruct model")
    text = served.tokenizer.apply_chat(for_template(body.messages), tools=tools or None)
    return encode("messages", served.tokenizer, text, add_special=False)  # the template spells out the rest


def _form_of_calls(body: ChatBody) -> Constraint | None:
    """What the tools make of the answer; None where it may be any text."""
    tools = {tool.function.name: tool.function.parameters for tool in body.usable_tools}
    if isinstance(body.tool_choice, NamedTool):
        name = body.tool_choice.function.name
        return required_calls({name: tools[name]}, parallel=False)
    if body.tool_choice == "required":
        return required_calls(tools, parallel=body.parallel_tool_calls is not False)
    strict = [tool.function.name for tool in body.usable_tools if tool.function.strict]
    return strict_calls(tools, strict) if strict else None


class Message:
    """One answer as it comes: text, and calls when there are tools."""

    def __init__(self, body: ChatBody) -> None:
        names = [tool.function.name for tool in body.usable_tools]
        self._parser = ToolParser(names) if names else None
        self._single = body.parallel_tool_calls is False
        self._called = False

    def push(self, text: str, finish: FinishReason | None) -> list[Delta]:
        """What the next piece of text settles; finish: set with the last one."""
        if self._parser is None:
            return [TextDelta(text)] if text else []
        deltas = self._parser.push(text) + (self._parser.finish() if finish else [])
        return list(self._wanted(deltas))

    def reason(self, finish: FinishReason) -> ChatReason:
        return "tool_calls" if self._called and finish == "stop" else finish

    def _wanted(self, deltas: Iterable[Delta]) -> Iterator[Delta]:
        for delta in deltas:
            if not (self._single and self._called):
                yield delta
            self._called = self._called or isinstance(delta, CallDelta)


class Chat:
    """The answers to one conversation, whole or in pieces."""

    def __init__(
        self, body: ChatBody, served: Service, prompt: Sequence[int], seed: int, request: Request
    ) -> None:
        self._body, self._tokenizer = body, served.tokenizer
        self._prompt, self._seed = list(prompt), seed
        self._heading = heading("chatcmpl", request.state.request_id, served.names[0])
        self._held = [Held() for _ in range(body.answers)]
        self._messages = [Message(body) for _ in range(body.answers)]
        self._begun = [False] * body.answers
        self._told_prompt = False

    def whole(self, results: Sequence[Result]) -> Event:
        (result,) = results
        answer: dict[str, object] = {
            **self._heading,
            "object": "chat.completion",
            "choices": [self._choice(choice) for choice in result.choices],
            "usage": usage(results),
        }
        if self._body.include_metrics:
            answer["metrics"] = metrics(results)
        return answer | self._of_prompt(result.prompt_logprobs or ())

    def write(self, place: int, chunk: Chunk) -> Iterator[Event]:
        index = chunk.choice
        held, message = self._held[index], self._messages[index]
        if not self._begun[index]:
            self._begun[index] = True
            role = answers.Delta(role="assistant", content="")
            yield self._piece(index, role, Held(prompt=chunk.prompt_logprobs))
        held.add(chunk)
        deltas = message.push(chunk.text, chunk.finish_reason)
        if not deltas and not chunk.finish_reason:
            return
        self._held[index] = Held()
        reason = message.reason(chunk.finish_reason) if chunk.finish_reason else None
        yield self._piece(index, _delta(deltas), held, reason)

    def end(self, results: Sequence[Result]) -> Iterator[Event]:
        last = last_event(self._body, results)
        if last is not None:
            yield {**self._heading, **_CHUNK, **last}

    def _piece(self, index: int, delta: answers.Delta, held: Held, reason: ChatReason | None = None) -> Event:
        choice = ChatChunkChoice(
            index=index, delta=delta, logprobs=self._logprobs(held.tokens), finish_reason=reason
        )
        if self._body.return_token_ids:
            choice["token_ids"] = held.ids
        if reason:
            choice["seed"] = self._seed
        piece = {**self._heading, **_CHUNK, "choices": [choice], **no_usage(self._body)}
        if not self._told_prompt:
            self._told_prompt = True
            piece |= self._of_prompt(held.prompt or ())
        return piece

    def _of_prompt(self, listed: Sequence[TopLogprobs | None]) -> dict[str, object]:
        """What an answer tells of its prompt."""
        found: dict[str, object] = {}
        if self._body.return_token_ids:
            found["prompt_token_ids"] = self._prompt
        if self._body.prompt_logprobs is not None:
            count = self._body.prompt_logprobs
            found["prompt_logprobs"] = listings.by_id(self._tokenizer, self._prompt, listed, count)
        return found

    def _choice(self, choice: Choice) -> ChatChoice:
        message = Message(self._body)
        deltas = message.push(choice.text, choice.finish_reason)
        found = ChatChoice(
            index=choice.index,
            message=_message(deltas),
            logprobs=self._logprobs(list(zip(choice.token_ids, choice.logprobs or (), strict=False))),
            finish_reason=message.reason(choice.finish_reason),
            seed=self._seed,
        )
        if self._body.return_token_ids:
            found["token_ids"] = list(choice.token_ids)
        return found

    def _logprobs(self, tokens: Sequence[listings.Token]) -> ContentLogprobs | None:
        if not self._body.logprobs:
            return None
        return ContentLogprobs(content=listings.content(self._tokenizer, tokens))


def _message(deltas: Sequence[Delta]) -> AssistantMessage:
    text, calls = _text(deltas), _calls(deltas)
    message = AssistantMessage(role="assistant", content=None if calls and not text else text, refusal=None)
    if calls:
        message["tool_calls"] = [
            answers.ToolCall(
                id=_call_id(),
                type="function",
                function=answers.CalledFunction(name=call.name, arguments=call.arguments),
            )
            for call in calls
        ]
    return message


def _delta(deltas: Sequence[Delta]) -> answers.Delta:
    found = answers.Delta()
    if text := _text(deltas):
        found["content"] = text
    if calls := _calls(deltas):
        found["tool_calls"] = [
            answers.ToolCallDelta(
                index=call.index,
                id=_call_id(),
                type="function",
                function=answers.FunctionDelta(name=call.name, arguments=call.arguments),
            )
            for call in calls
        ]
    return found


def _text(deltas: Iterable[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))


def _calls(deltas: Iterable[Delta]) -> list[CallDelta]:
    return [delta for delta in deltas if isinstance(delta, CallDelta)]


def _call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"
