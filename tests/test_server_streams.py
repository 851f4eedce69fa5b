"""Streams: they add up to the answer in one piece, begin with a status, and end with [DONE] or an error."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from surefoot.models.base import Segment
from surefoot.models.toy import ToyModel
from tests.answers import joined
from tests.api import AS_JSON, CHAT, COMPLETIONS, Api, Json, serving
from tests.harness import VOCAB_SIZE as LETTERS
from tests.harness import Scripted, ids, knowing, letters, reciting
from tests.serving import CONTEXT, IM_END, VOCAB_SIZE, prose

MESSAGES = [{"role": "user", "content": "hi"}]
PATIENCE = 60.0  # seconds; only a hang takes so long


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with serving(draft_tokens=4) as running:
        yield running


BODIES = st.fixed_dictionaries(
    {"seed": st.integers(0, 2**64 - 1), "max_tokens": st.integers(1, 24)},
    optional={
        "n": st.integers(1, 3),
        "temperature": st.sampled_from([0, 0.7, 1, 2]),
        "stop": st.lists(st.text("ae .", min_size=1, max_size=3), max_size=3),
        "stop_token_ids": st.lists(st.sampled_from(list(b"xyz")), max_size=2),
        "min_tokens": st.integers(0, 1),
        "ignore_eos": st.booleans(),
        # halves of é, and the end, likelier than they are
        "logit_bias": st.dictionaries(st.sampled_from(["195", "169", "257", "97"]), st.sampled_from([8, 11])),
        "draft_tokens": st.integers(0, 6),
        "return_token_ids": st.booleans(),
        "prompt_logprobs": st.integers(0, 2),
        "structured_outputs": st.sampled_from([{"regex": "[aé]{1,9}"}, {"choice": ["yes", "yet", "no"]}]),
    },
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    body=BODIES,
    prompt=st.sampled_from(["abc", "é", ["abab", "x"], [[104, 195], [257]]]),
    logprobs=st.none() | st.integers(0, 3),
    echo=st.booleans(),
)
def test_completions_streamed_or_not(
    api: Api, body: Json, prompt: Any, logprobs: int | None, echo: bool
) -> None:
    asked: Json = {"prompt": prompt, "echo": echo, "logprobs": logprobs, **body}
    whole = api.ask(COMPLETIONS, **asked)
    *events, last = api.events(COMPLETIONS, **asked, stream_options={"include_usage": True})
    assert joined(events) == whole["choices"]
    assert uncached(last) == uncached(whole)
    in_order(events)
    assert {"created", "id"} & {*last} == {"created", "id"}


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=BODIES, content=st.text(max_size=5), top=st.none() | st.integers(0, 3))
def test_chats_streamed_or_not(api: Api, body: Json, content: str, top: int | None) -> None:
    asked: Json = {"messages": [{"role": "user", "content": content}], **body}
    asked |= {} if top is None else {"logprobs": True, "top_logprobs": top}
    whole = api.ask(CHAT, **asked)
    *events, last = api.events(CHAT, **asked, stream_options={"include_usage": True})
    assert joined(events) == whole["choices"]
    assert uncached(last) == uncached(whole)
    in_order(events)
    for name in ("prompt_token_ids", "prompt_logprobs"):
        assert events[0].get(name) == whole.get(name)


def uncached(answer: Json) -> Json:
    """The usage but for what the first of the two left to the second."""
    return {name: value for name, value in answer["usage"].items() if name != "prompt_tokens_details"}


def in_order(events: Sequence[Json]) -> None:
    """One answer; no event without text but a chat's first and a choice's last."""
    assert len({event["id"] for event in events}) == 1
    assert all(event["usage"] is None for event in events)
    begun = set()
    for event in events:
        (choice,) = event["choices"]
        delta = choice.get("delta", {})
        said = choice.get("text") or delta.get("content")
        if "role" in delta:
            assert choice["index"] not in begun
        else:
            assert said or choice["finish_reason"]
        begun.add(choice["index"])


@pytest.mark.parametrize("k", range(1, 7))
def test_text_that_lags_keeps_its_logprobs(k: int) -> None:
    """The text waits for what may become a stop string; the tokens that came meanwhile come with it."""
    path = ids("aXbXXaXYc")
    target = reciting(ids("go"), path, LETTERS)
    drafter = Scripted(knowing([[*ids("go"), *path]]))
    with serving(ToyModel(target, LETTERS), letters(), draft=drafter, draft_tokens=k) as api:
        body: Json = {"prompt": "go", "temperature": 0, "stop": "XY", "logprobs": 1, "return_token_ids": True}
        events = api.events(COMPLETIONS, **body)
    pieces = [event["choices"][0] for event in events]
    assert "".join(piece["text"] for piece in pieces) == "aXbXXa"
    assert all(piece["text"] or piece["finish_reason"] for piece in pieces)
    assert [name for piece in pieces for name in piece["logprobs"]["tokens"]] == list("aXbXXaXY")
    assert [token for piece in pieces for token in piece["token_ids"]] == ids("aXbXXaXY")
    told = 0
    for piece in pieces:  # no text before its token
        told += len(piece["logprobs"]["tokens"])
        assert sum(len(other["text"]) for other in pieces[: pieces.index(piece) + 1]) <= told


def test_b3_the_usage_counts_tokens_not_events() -> None:
    path = ids("abcdefghijklmnop")
    drafter = Scripted(knowing([[*ids("go"), *path]]))
    with serving(
        ToyModel(reciting(ids("go"), path, LETTERS), LETTERS), letters(), draft=drafter, draft_tokens=6
    ) as api:
        body: Json = {"prompt": "go", "temperature": 0, "max_tokens": 15}
        *events, last = api.events(COMPLETIONS, **body, stream_options={"include_usage": True})
    assert last["usage"]["completion_tokens"] == 15 > len(events)
    assert last["choices"] == []


@pytest.mark.parametrize(("path", "body"), [(COMPLETIONS, {"prompt": "a"}), (CHAT, {"messages": MESSAGES})])
def test_what_comes_last_is_what_was_asked_for(api: Api, path: str, body: Json) -> None:
    for usage in (False, True):
        for metrics in (False, True):
            more: Json = {"stream_options": {"include_usage": usage}, "include_metrics": metrics}
            events = api.events(path, **body, max_tokens=4, **more)
            assert ("usage" in events[0]) == usage
            assert (events[-1]["choices"] == []) == (usage or metrics)
            assert ("metrics" in events[-1], bool(events[-1].get("usage"))) == (metrics, usage)


# What goes wrong


class Failing(ToyModel):
    """Breaks where a text has a number of tokens and holds a given one."""

    def __init__(self, length: int, token: int = ord("!")) -> None:
        def logits_of(prefix: tuple[int, ...]) -> NDArray[np.float32]:
            if len(prefix) >= length and token in prefix:
                raise RuntimeError("the model broke")
            return prose(prefix)

        super().__init__(logits_of, VOCAB_SIZE, CONTEXT, (IM_END,))


BAD = [(COMPLETIONS, {"prompt": "!!"}), (CHAT, {"messages": [{"role": "user", "content": "!!"}]})]
ENDLESS: Json = {"ignore_eos": True, "max_tokens": 300}


@pytest.mark.parametrize(("path", "body"), BAD)
def test_a_fault_before_the_first_token_has_a_status(path: str, body: Json) -> None:
    with serving(Failing(2)) as api:
        for stream in (False, True):
            response = api.post(path, **body, stream=stream)
            assert (response.status_code, response.json()["error"]["type"]) == (500, "server_error")
        api.ask(COMPLETIONS, prompt="fine")


@pytest.mark.parametrize(("path", "body"), BAD)
def test_a_fault_in_a_stream_is_its_last_event(path: str, body: Json) -> None:
    with serving(Failing(80)) as api:
        *events, last = api.lines(path, **body, **ENDLESS)
        assert len(events) > 20
        assert json.loads(last)["error"] == {
            "message": "the server failed at this request; its log says how",
            "type": "server_error",
            "param": None,
            "code": 500,
        }
        assert api.post(path, **body, **ENDLESS).status_code == 500
        with api.openai() as client, pytest.raises(openai.APIError, match="the server failed"):
            for _ in client.completions.create(
                model="toy", prompt="!!", stream=True, max_tokens=300, extra_body={"ignore_eos": True}
            ):
                pass


def test_a_stream_begins_when_every_answer_has_begun() -> None:
    """Here the one that can't is the last to get its turn."""
    with serving(Failing(2), max_requests=1) as api:
        response = api.post(COMPLETIONS, prompt=["ab", "cd", "!!"], max_tokens=20, stream=True)
        assert (response.status_code, response.json()["error"]["type"]) == (500, "server_error")


def test_one_prompt_of_several_that_fails_fails_the_request() -> None:
    with serving(Failing(40)) as api:
        *_, last = api.lines(COMPLETIONS, prompt=["ab", "!!", "cd"], **ENDLESS)
        assert json.loads(last)["error"]["code"] == 500
        assert api.post(COMPLETIONS, prompt=["ab", "!!", "cd"], **ENDLESS).status_code == 500
        wait_until_idle(api)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (COMPLETIONS, {"prompt": ["ab", [258]]}, 400),
        (COMPLETIONS, {"prompt": ["ab", "a" * CONTEXT]}, 400),
        (COMPLETIONS, {"prompt": "a", "structured_outputs": {"regex": "("}}, 400),
        (CHAT, {"messages": [{"role": "user", "content": "a" * CONTEXT}]}, 400),
        (CHAT, {"messages": MESSAGES, "model": "other"}, 404),
    ],
)
def test_a_mistake_has_a_status_in_a_stream_too(api: Api, path: str, body: Json, status: int) -> None:
    response = api.post(path, **body, stream=True)
    assert response.status_code == status
    assert response.json()["error"]["code"] == status


class Gated(ToyModel):
    """Waits in a pass, from one on, until the gate is open."""

    def __init__(self, free: int) -> None:
        super().__init__(prose, VOCAB_SIZE, CONTEXT, (IM_END,))
        self.gate, self.free, self.passes = threading.Event(), free, 0

    def forward(self, batch: Sequence[Segment]) -> NDArray[np.float32]:
        self.passes += 1
        if self.passes > self.free:
            assert self.gate.wait(PATIENCE)
        return super().forward(batch)


def test_a_deadline_in_a_stream_ends_it_with_an_error() -> None:
    model = Gated(free=5)
    with serving(model, timeout=0.5) as api:
        *events, last = api.lines(COMPLETIONS, prompt="ab", **ENDLESS)
        model.gate.set()
        assert 1 <= len(events) <= 5
        assert json.loads(last)["error"]["type"] == "timeout_error"
        wait_until_idle(api)


def test_a_full_queue_is_429_in_a_stream_too() -> None:
    model = Gated(free=1)
    with serving(model, max_requests=1, max_waiting=1) as api:
        with opened(api, COMPLETIONS, prompt="ab", **ENDLESS) as lines:
            next(lines)
            for body in ({"prompt": ["ab", "cd"]}, {"prompt": "ab", "n": 2}):
                response = api.post(COMPLETIONS, **body, stream=True)
                assert (response.status_code, response.json()["error"]["type"]) == (429, "rate_limit_error")
                assert int(response.headers["Retry-After"]) >= 1
        model.gate.set()
        wait_until_idle(api)


@pytest.mark.parametrize(
    ("path", "body"),
    [(COMPLETIONS, {"prompt": ["ab", "cd", "ef"], "n": 2}), (CHAT, {"messages": MESSAGES, "n": 4})],
)
def test_closing_the_connection_ends_all_that_it_asked_for(path: str, body: Json) -> None:
    model = Gated(free=12)
    with serving(model) as api:
        with opened(api, path, **body, **ENDLESS) as lines:
            next(lines)
            assert api.served.engine.load.running + api.served.engine.load.waiting > 1
        ends_within_a_pass(api, model)


def test_closing_the_connection_ends_an_answer_in_one_piece() -> None:
    model = Gated(free=6)
    with serving(model) as api:
        with pytest.raises(httpx.ReadTimeout):
            api.client.post(COMPLETIONS, json={"prompt": ["ab", "cd"], "n": 2, **ENDLESS}, timeout=0.2)
        ends_within_a_pass(api, model)
        assert api.client.get("/health").status_code == 200


def ends_within_a_pass(api: Api, model: Gated) -> None:
    """Once the server has seen that the client is gone; the engine stands in a pass meanwhile."""
    until(lambda: not api.served.engine._open)
    model.gate.set()
    wait_until_idle(api)
    assert model.passes <= model.free + 1


class opened:  # noqa: N801 - a context manager, used like a function
    """The lines of a stream that is left before its end."""

    def __init__(self, api: Api, path: str, **body: object) -> None:
        content = json.dumps({"stream": True, **body})
        self._stream = api.client.stream("POST", path, content=content, headers=AS_JSON)

    def __enter__(self) -> Iterator[str]:
        return self._stream.__enter__().iter_lines()

    def __exit__(self, *error: Any) -> None:
        self._stream.__exit__(*error)


def wait_until_idle(api: Api) -> None:
    """And nothing may be left of what ran."""
    until(lambda: not (api.served.engine.load.running or api.served.engine.load.waiting))


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end
        time.sleep(0.001)
