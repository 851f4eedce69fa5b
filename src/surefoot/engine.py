"""The loop: schedule, draft, verify, commit."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar

from surefoot import trace as tracing
from surefoot.drafters.base import Drafter
from surefoot.events import events_of
from surefoot.intake import Intake
from surefoot.lookahead import Fixed
from surefoot.loop import Loop, Outcome
from surefoot.memory import divide
from surefoot.models.base import Model
from surefoot.pairing import LOOKUPS, Loaded, caches_of, check_loading, open_drafter, open_target
from surefoot.prompts import Prompt, as_list, check, prepare
from surefoot.request import Request
from surefoot.results import Chunk, Group, Load, Result
from surefoot.scheduler import Slot
from surefoot.trace import Event
from surefoot.types import VERIFY_MODES, Constraint, SamplingParams, SurefootError, VerifyMode, whole

if TYPE_CHECKING:
    from surefoot.text import Tokenizer

MAX_ROWS = 512

NO_PAGES = "kv_memory: the model's cache has no room left for this request; other engines hold it"


def lookahead(draft: object, draft_tokens: int | None, max_rows: int = MAX_ROWS) -> Fixed:
    """How long to draft. Raises SurefootError for a length that isn't whole, or that no pass can take."""
    controller = Fixed((15 if draft in LOOKUPS else 4) if draft_tokens is None else draft_tokens)
    if controller.draft_tokens >= whole("max_rows", max_rows, 1):
        raise SurefootError(
            f"draft_tokens: {draft_tokens} is out of range; {max_rows} rows allow {max_rows - 1}"
        )
    return controller


class Engine:
    """A target, a drafter, and the requests in flight.

        with Engine("smollm2-135m") as engine:
            print(engine.generate("Once upon a time")[0].text)

    model: a name, hub id, folder or .gguf file, what `load_model` returned, or any `Model`. draft: None
    ("none") for plain decoding, "ngram", "suffix", a smaller model named like `model`, or any `Drafter`.
    tokenizer: only for a bare `Model`, which otherwise takes and gives token ids alone. draft_tokens: the
    most that are drafted per round and request, by default 15 for "ngram" and "suffix", 4 for others.
    share_drafts: whether suffix drafts may come from other requests' outputs, which the speed may then tell.
    verify: "coupled" gives each seed the tokens of plain decoding; "rejection" and "block" only the
    distribution, with fresh noise in each round. precision, threads: as for `load_model`, of what is given by
    name; refused where nothing is. max_rows: of a pass. prompt_rows: of these, rows of prompts while others
    decode, so that a long prompt holds nobody up. max_requests: in flight at once, choices counted singly.
    kv_memory: bytes for the keys and values of target and draft model together; None for as many as are
    needed. When they don't suffice the youngest request is preempted: it goes on later, with the same tokens.
    prefix_cache: whether a request may begin with what another one computed; what ended requests leave takes
    room that nobody else needs.
    trace: a file to write, or a function to call, for every event.

    Engines that share a model share its cache, and so the `kv_memory` that was given last.
    One thread at a time. Raises SurefootError for settings, files and requests that can't be served.
    """

    loop_type: ClassVar[type[Loop]] = Loop

    def __init__(
        self,
        model: str | Path | Loaded | Model,
        draft: str | Path | Loaded | Drafter | None = "ngram",
        *,
        tokenizer: Tokenizer | None = None,
        draft_tokens: int | None = None,
        share_drafts: bool = False,
        verify: VerifyMode = "coupled",
        precision: str = "auto",
        threads: int | None = None,
        max_rows: int = MAX_ROWS,
        max_requests: int = 32,
        prompt_rows: int = 64,
        kv_memory: int | None = None,
        prefix_cache: bool = True,
        trace: str | Path | Callable[[Event], None] | None = None,
    ) -> None:
        if verify not in VERIFY_MODES:
            raise SurefootError(f"verify: {verify!r} is unknown; choose one of {', '.join(VERIFY_MODES)}")
        controller = lookahead(draft, draft_tokens, max_rows)
        self._max_requests = whole("max_requests", max_requests, 1)
        check_loading(model, draft, precision, threads)
        self._target = open_target(model, tokenizer, precision, threads)
        drafter = open_drafter(draft, self._target, precision, threads, share_drafts=share_drafts)
        held = divide(kv_memory, caches_of(self._target, drafter, kv_memory))
        longest = self._target.model.max_length
        self._max_length = longest if held is None else min(longest, held)
        self._max_draft_tokens = max_rows - 1 if drafter else 0
        self._reuse = prefix_cache
        self._loop = self.loop_type(
            self._target.model,
            drafter,
            controller,
            verify,
            max_requests=max_requests,
            max_rows=max_rows,
            prompt_rows=whole("prompt_rows", prompt_rows, 1),
            prefix_cache=prefix_cache,
        )
        weakref.finalize(self, self._loop.close).atexit = False  # the model's cache may outlive the engine
        self._groups: dict[int, Group] = {}
        self._inboxes: dict[int, deque[Chunk]] = {}
        self._ready: list[Chunk] = []
        self._intake, self._rounds = Intake(self._target, self._max_length), count()
        self._closed = False
        self._clock_began = time.perf_counter()
        self._writer = tracing.Writer(trace) if isinstance(trace, str | Path) else None
        self._record = trace if callable(trace) else self._writer

    @property
    def model(self) -> Model:
        return self._target.model

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self._target.tokenizer

    @property
    def max_requests(self) -> int:
        """How many are in flight at once, choices counted singly."""
        return self._max_requests

    @property
    def max_length(self) -> int:
        """Of prompt and output together, in tokens: what model and memory allow."""
        return self._max_length

    @property
    def max_draft_tokens(self) -> int:
        """The longest draft that a request may ask for; 0 without a drafter."""
        return self._max_draft_tokens

    @property
    def load(self) -> Load:
        """What is in flight, and what it takes."""
        load = self._loop.load
        return replace(load, waiting=load.waiting + sum(group.held_back for group in self._groups.values()))

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        chat: bool = False,
    ) -> list[Result]:
        """Answers all prompts together; results in the order of the prompts.

        prompts: text, token ids, or a conversation as messages of "role" and "content"; or a list of these.
        params: for all of them, or one for each. chat: text is a message, put into the model's chat template
        (conversations always are). Raises SurefootError for the first prompt that can't be answered, and
        then drops the rest.
        """
        self._check_open()
        asked = as_list(prompts)
        each = [params] * len(asked) if not isinstance(params, Sequence) else list(params)
        if len(each) != len(asked):
            raise SurefootError(
                f"params: {len(each)} were given for {len(asked)} prompts; give one, or as many"
            )
        numbers: list[int] = []
        try:
            for prompt, its_params in zip(asked, each, strict=True):
                numbers.append(self.add(prompt, its_params, chat=chat))
                self._inboxes[numbers[-1]] = deque()
            return [chunk.result for number in numbers for chunk in self._chunks_of(number) if chunk.result]
        finally:
            for number in numbers:
                self._forget(number)

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, chat: bool = False
    ) -> Generator[Chunk, None, None]:
        """The answer to one prompt as it comes; the last chunk carries the `Result`. Arguments and errors as
        `generate`. Closing the iterator drops the request."""
        number = self.add(prompt, params, chat=chat)
        self._inboxes[number] = deque()
        try:
            yield from self._chunks_of(number)
        finally:
            self._forget(number)

    def add(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        chat: bool = False,
        draft_tokens: int | None = None,
        cache_salt: str = "",
    ) -> int:
        """Queues a request for `step`, and returns the number its chunks will bear. draft_tokens: the most
        to draft in a round, None for the engine's own. cache_salt: only requests with the same one share what
        they computed."""
        self._check_open()
        if params is None:
            params = SamplingParams()
        if not isinstance(params, SamplingParams):
            raise SurefootError(f"params: {type(params).__name__} given; it is a SamplingParams, or None")
        if draft_tokens is not None:
            draft_tokens = whole("draft_tokens", draft_tokens, 0, self._max_draft_tokens)
        prepared = prepare(prompt, params, self.tokenizer, chat=chat)
        check(prepared.ids, params, self._target.vocab_limit, self._max_length)
        arrived = time.perf_counter() - self._clock_began
        choices = self._intake.choices(
            prepared, params, arrived=arrived, draft_tokens=draft_tokens, cache_salt=cache_salt
        )
        # The others begin with the first one's prompt, or need to know its log-probabilities.
        apart = self._reuse or params.prompt_logprobs is not None
        group = Group(prepared.text, choices, choices[1:] if apart else ())
        self._groups[choices[0].number] = group
        for request in choices[:1] if apart else choices:
            self._loop.add(request)
        return choices[0].number

    def compile(self, grammar: Constraint) -> None:
        """Makes a grammar ready for requests that will bring it, which may take seconds: from any thread.
        Raises SurefootError for one that doesn't compile."""
        self._intake.compile(grammar)

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do or to hand out."""
        return bool(self._ready) or len(self._loop) > 0

    def step(self) -> list[Chunk]:
        """One round for whoever is in flight: what it added to each request.

        A request that can't go on, whatever the reason, ends with a chunk bearing the exception. None is
        raised but those that are no `Exception`, Ctrl-C being one: the requests of the round are dropped
        then, and the engine stays usable.
        """
        slots: list[Slot[Request]] = []
        try:
            slots = self._loop.schedule()
            if slots:
                self._run(slots)
            elif oldest := self._loop.oldest:
                self._fail(oldest, SurefootError(NO_PAGES))
        except Exception as error:  # of no request's own, so nothing is known of any
            for group in [*self._groups.values()]:
                self._drop(group.choices)
                self._fail(group.choices[0], error)
        except BaseException:
            for slot in slots:
                dropped = self._groups.pop(slot.job.number, None)
                self._drop(dropped.choices if dropped else ())
            raise
        ready, self._ready = self._ready, []
        return ready

    def abort(self, number: int) -> None:
        """Drops a request and all it holds; nothing happens when it is unknown or finished. What it computed
        may serve others."""
        group = self._groups.pop(number, None)
        for request in group.choices if group else ():
            self._loop.release(request)

    def close(self) -> None:
        """Drops all requests and closes the trace; new ones are refused from now on."""
        self._closed = True
        for number in list(self._groups):
            self.abort(number)
        self._loop.close()
        if self._writer:
            self._writer.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise SurefootError("engine: it is closed")

    def _chunks_of(self, number: int) -> Iterator[Chunk]:
        """Runs rounds until a request is finished; what they bring the others goes to their inboxes."""
        inbox = self._inboxes[number]
        while True:
            while inbox:
                chunk = inbox.popleft()
                if chunk.error:
                    raise chunk.error
                yield chunk
                if chunk.result:
                    return
            if number not in self._groups:
                raise SurefootError(
                    f"request {number}: it was dropped when a round failed, or the engine closed"
                )
            for chunk in self.step():
                self._inboxes.get(chunk.request, self._ready).append(chunk)

    def _forget(self, number: int) -> None:
        self.abort(number)
        self._inboxes.pop(number, None)

    def _run(self, slots: Sequence[Slot[Request]]) -> None:
        """Turns a round into events and chunks."""
        for round_ in self._loop.run(slots):
            events = events_of(round_, next(self._rounds), self._clock_began)
            for outcome, event in zip(round_.outcomes, events, strict=True):
                request = outcome.slot.job
                group = self._groups.get(request.number)
                if group is None:  # another choice of it failed in this very round
                    continue
                try:
                    self._absorb(outcome, event, group)
                except Exception as error:  # the trace can't be written
                    self._fail(request, error)

    def _absorb(self, outcome: Outcome, event: Event, group: Group) -> None:
        request = outcome.slot.job
        if self._record:
            self._record(event)
        group.events.append(event)
        if outcome.error:
            self._fail(request, outcome.error)
        elif outcome.emitted:
            self._loop.add_first(*group.let_go())
            self._ready.append(group.chunk(request.choice, outcome.emitted, outcome.logprobs))
            if self._ready[-1].result:
                del self._groups[request.number]

    def _fail(self, request: Request, error: Exception) -> None:
        self.abort(request.number)
        self._ready.append(Chunk(request.number, request.choice, text="", token_ids=(), error=error))

    def _drop(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self._loop.drop(request)
