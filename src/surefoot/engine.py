"""The loop: schedule, draft, verify, commit."""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import cached_property
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar

from surefoot import trace as tracing
from surefoot.drafters.base import Drafter
from surefoot.lookahead import Fixed
from surefoot.loop import Loop, Round
from surefoot.models.base import Model
from surefoot.pairing import NGRAM, Loaded, check_loading, open_drafter, open_target
from surefoot.prompts import Prompt, as_list, check, prepare
from surefoot.request import Limits, Matcher, Request
from surefoot.results import Chunk, Group, Load, Result
from surefoot.trace import Event
from surefoot.types import VERIFY_MODES, SamplingParams, SurefootError, VerifyMode, whole

if TYPE_CHECKING:
    from surefoot.grammar import Grammars
    from surefoot.text import Detokenizer, Tokenizer

MAX_ROWS = 512

_sequence_numbers = count()  # of the process: engines may share a model, and so its cache


def lookahead(draft: object, draft_tokens: int | None, max_rows: int = MAX_ROWS) -> Fixed:
    """How long to draft. Raises SurefootError for a length that isn't whole, or that no pass can take."""
    controller = Fixed((15 if draft == NGRAM else 4) if draft_tokens is None else draft_tokens)
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
    ("none") for plain decoding, "ngram", a smaller model named like `model`, or any `Drafter`. tokenizer:
    only for a bare `Model`, which otherwise takes and gives token ids alone. draft_tokens: the most
    that are drafted per round and request, by default 15 for the n-gram drafter, 4 for others. verify:
    "coupled" gives each seed the tokens of plain decoding; "rejection" and "block" only the distribution,
    with fresh noise in each round.
    precision, threads: as for `load_model`, of what is given by name; refused where nothing is.
    max_rows: of a pass. max_requests: in flight at once, choices counted singly; the rest wait. trace: a
    file to write, or a function to call, for every event.

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
        verify: VerifyMode = "coupled",
        precision: str = "auto",
        threads: int | None = None,
        max_rows: int = MAX_ROWS,
        max_requests: int = 32,
        trace: str | Path | Callable[[Event], None] | None = None,
    ) -> None:
        if verify not in VERIFY_MODES:
            raise SurefootError(f"verify: {verify!r} is unknown; choose one of {', '.join(VERIFY_MODES)}")
        controller = lookahead(draft, draft_tokens, max_rows)
        self._max_requests = whole("max_requests", max_requests, 1)
        check_loading(model, draft, precision, threads)
        self._target = open_target(model, tokenizer, precision, threads)
        drafter = open_drafter(draft, self._target, precision, threads)
        self._loop = self.loop_type(
            self._target.model, drafter, controller, verify, max_requests=max_requests, max_rows=max_rows
        )
        self._groups: dict[int, Group] = {}
        self._inboxes: dict[int, deque[Chunk]] = {}
        self._ready: list[Chunk] = []
        self._numbers, self._rounds = count(), count()
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
    def load(self) -> Load:
        """What is in flight, and what it takes."""
        return self._loop.load

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
    ) -> int:
        """Queues a request for `step`, and returns the number its chunks will bear. draft_tokens: the most
        to draft in a round, None for the engine's own."""
        self._check_open()
        if params is None:
            params = SamplingParams()
        if not isinstance(params, SamplingParams):
            raise SurefootError(f"params: {type(params).__name__} given; it is a SamplingParams, or None")
        target = self._target
        prepared = prepare(prompt, params, target.tokenizer, chat=chat)
        check(prepared.ids, params, target.vocab_limit, target.model.max_length)
        limits = Limits(target.model.max_length, target.eos_ids, target.vocab_limit, prepared.bad_words)
        number = next(self._numbers)
        seed = secrets.randbits(63) if params.seed is None else params.seed
        arrived = self._since(time.perf_counter())
        choices = [
            Request(
                next(_sequence_numbers),
                number,
                choice,
                prepared.ids,
                params,
                limits,
                seed=seed,
                arrived=arrived,
                detokenizer=self._detokenizer(),
                draft_tokens=draft_tokens,
            )
            for choice in range(params.n)
        ]
        self._groups[number] = Group(prepared.text, choices)
        for request in choices:
            self._loop.add(request)
        return number

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do or to hand out."""
        return bool(self._ready) or len(self._loop) > 0

    def step(self) -> list[Chunk]:
        """One round for whoever is in flight: what it added to each request.

        A request that can't go on ends with a chunk bearing the error. Anything else that goes wrong,
        Ctrl-C included, drops the requests of the round and is raised; the engine stays usable.
        """
        slots = self._loop.schedule()
        try:
            if slots:
                self._absorb(self._loop.run(slots))
        except BaseException:
            for slot in slots:
                self.abort(slot.job.number)
            raise
        ready, self._ready = self._ready, []
        return ready

    def abort(self, number: int) -> None:
        """Drops a request and all it holds; nothing happens when it is unknown or finished."""
        group = self._groups.pop(number, None)
        for request in group.choices if group else ():
            self._loop.release(request)

    def close(self) -> None:
        """Drops all requests and closes the trace; new ones are refused from now on."""
        self._closed = True
        for number in list(self._groups):
            self.abort(number)
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

    def _absorb(self, round_: Round) -> None:
        """Turns a round into events and chunks."""
        events = list(self._events(round_))
        for outcome, event in zip(round_.outcomes, events, strict=True):
            request = outcome.slot.job
            group = self._groups.get(request.number)
            if group is None:  # another choice of it failed in this very round
                continue
            if self._record:
                self._record(event)
            group.events.append(event)
            if outcome.error:
                self.abort(request.number)
                self._ready.append(
                    Chunk(request.number, request.choice, text="", token_ids=(), error=outcome.error)
                )
            elif outcome.emitted:
                self._ready.append(group.chunk(request.choice, outcome.emitted, outcome.logprobs))
                if self._ready[-1].result:
                    del self._groups[request.number]

    def _events(self, round_: Round) -> Iterator[Event]:
        number, peak = next(self._rounds), tracing.peak_memory_bytes()
        other = round_.ended - round_.began - round_.drafting - round_.verifying
        for outcome in round_.outcomes:
            request, draft, verdict = outcome.slot.job, outcome.draft, outcome.verdict
            yield Event(
                round=number,
                request=request.number,
                choice=request.choice,
                arrived=request.arrived,
                began=self._since(round_.began),
                ended=self._since(round_.ended),
                prompt_rows=outcome.slot.prompt_rows,
                rows=outcome.slot.prompt_rows or 1 + len(draft.tokens),
                draft_tokens=draft.tokens,
                parents=draft.parents,
                source=draft.source,
                tested=verdict.tested if verdict else 0,
                path=verdict.path if verdict else (),
                next_token=verdict.next_token if verdict else None,
                bonus=verdict is not None and verdict.bonus,
                emitted=outcome.emitted,
                finish_reason=request.finish_reason,
                draft_ms=1000 * round_.drafting,
                verify_ms=1000 * round_.verifying,
                other_ms=1000 * other,
                peak_memory_bytes=peak,
            )

    def _matcher(self, params: SamplingParams) -> Matcher | None:
        if params.grammar is None:
            return None
        return self._grammars.matcher(params.grammar)

    @cached_property
    def _grammars(self) -> Grammars:
        from surefoot.grammar import Grammars

        target = self._target
        if target.tokenizer is None:
            raise SurefootError("grammar: there is no tokenizer, so tokens can't be told what to spell")
        return Grammars(target.tokenizer, target.eos_ids, target.model.vocab_size)

    def _detokenizer(self) -> Detokenizer | None:
        if self.tokenizer is None:
            return None
        from surefoot.text import Detokenizer

        return Detokenizer(self.tokenizer, continues=True)

    def _since(self, moment: float) -> float:
        return moment - self._clock_began
