"""What may follow an output that a constraint holds to a form.

llguidance reads the grammar: an Earley parser over bytes, whose lexer says which tokens of a vocabulary may
come next. Here it learns our tokens, and its parser is moved along drafts and back, so that whatever was
drafted and rejected, a state belongs to the committed tokens.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, lru_cache

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from surefoot.constraints import grammar_of
from surefoot.text import Tokenizer
from surefoot.types import Constraint, SurefootError

_COMPILED = 16  # grammars kept; each may hold a lexer of `max_lexer_states`, about 1.5 kB each
_STACK = 256 * 2**20  # bytes, of the compiler's thread: it recurses along chains of rules
_STACK_SIZE = threading.Lock()  # the size is the process's, so one thread at a time may change it
_LONGEST = 300  # characters of a reason
_NO_TOKEN = "NoExtensionBias"  # llguidance's word for a place that no token leads away from
_SPECIAL = b"\xff"  # llguidance's mark of a token that stands for no text; no UTF-8 has this byte

# What one grammar may cost; beyond it the parser gives up. The first few also stand in llguidance's defaults.
_LIMITS = LLParserLimits(
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=200_000,
    step_max_items=20_000,
    max_items_in_row=2_000,
    max_lexer_states=50_000,
    verbose_errors=False,
)


class Grammars:
    """Constraints over the vocabulary of one model.

    eos_ids: the ids that end a text; they are allowed exactly where an output may end, the tokenizer's other
    special tokens only where a Lark grammar names them. vocab_size: of the model; ids that stand for nothing
    are never allowed. The vocabulary is read at the first constraint, which takes a moment.
    """

    def __init__(self, tokenizer: Tokenizer, eos_ids: Sequence[int], vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._ends = np.zeros(vocab_size, np.bool_)
        self._ends[[token for token in eos_ids if token < vocab_size]] = True
        self._ends.flags.writeable = False  # matchers hand it out
        self._compiled = lru_cache(_COMPILED)(self._compile)

    def matcher(self, constraint: Constraint) -> GrammarMatcher:
        """The state before the first token of an output.

        Raises SurefootError "grammar: …", with llguidance's own reason, for a constraint that doesn't
        compile, that asks for what can't be enforced, or that costs too much.
        """
        return GrammarMatcher(self._compiled(constraint), self._ends)

    def _compile(self, constraint: Constraint) -> LLMatcher:
        if not self._ends.any():
            raise SurefootError("grammar: the model has no end-of-sequence token to end an output with")
        text = grammar_of(constraint)
        compiled = _with_room(lambda: LLMatcher(self._vocabulary, text, log_level=0, limits=_LIMITS))
        complaints = [compiled.get_error()] if compiled.is_error() else compiled.get_grammar_warnings()
        if complaints:
            raise SurefootError(f"grammar: {_reason(complaints[0], located=constraint.kind == 'lark')}")
        self._try(compiled)
        return compiled

    def _try(self, compiled: LLMatcher) -> None:
        """Takes the first step and goes back: some grammars show only then that they are beyond the limits,
        can't be rolled back, or never end."""
        matcher = GrammarMatcher(compiled, self._ends)
        first = np.flatnonzero(matcher.allowed(()) & ~self._ends)
        if len(first):
            matcher.allowed([int(first[0])])
            matcher.allowed(())

    @cached_property
    def _vocabulary(self) -> LLTokenizer:
        words = _Words(self._tokenizer, np.flatnonzero(self._ends).tolist(), len(self._ends))
        return LLTokenizer(TokenizerWrapper(words), eos_token=words.eos_ids)


class _Words:
    """What `TokenizerWrapper` asks of a tokenizer. tokens: the bytes of every id, empty for padding."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, eos_ids: list[int], vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self.eos_ids = eos_ids
        self.eos_token_id = eos_ids[0]
        self.tokens = [tokenizer.token_bytes(token) for token in range(vocab_size)]
        for token in range(vocab_size):
            if token in eos_ids or tokenizer.is_special(token):
                self.tokens[token] = _SPECIAL + self.tokens[token]

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special=False)


class GrammarMatcher:
    """The state of one output, a `surefoot.request.Matcher`.

    The parser stands behind the output and those drafted tokens that it was last asked about, so that a
    draft that is asked about token by token is read once, and a part of it that is committed is not read
    again. A mask is computed once for every place. Where the parser gives up, SurefootError is raised, and
    the state is again that of the output.
    """

    def __init__(self, compiled: LLMatcher, ends: NDArray[np.bool_]) -> None:
        self._compiled = compiled
        self._parser = compiled.deep_copy()
        self._ends = ends
        self._output: list[int] = []
        self._ahead: list[int] = []  # drafted tokens that the parser has read
        self._masks: dict[int, bytes] = {}  # a bit per token, by the number of tokens before it
        self._ended = False

    @property
    def done(self) -> bool:
        """Whether the output is complete and nothing but an end may follow."""
        if self._ended or self._ahead:
            return self._ended
        if self._parser.is_stopped():
            return True
        return self._parser.is_accepting() and not (self._mask() & ~self._ends).any()

    def allowed(self, drafted: Sequence[int]) -> NDArray[np.bool_]:
        """What may follow the output and some drafted tokens, [vocabulary], an end where it may end. After a
        drafted end, and after drafted tokens that may not follow, an end alone."""
        if self._ended or self._follow(drafted) < len(drafted):
            return self._ends
        return self._mask()

    def legal(self, drafted: Sequence[int]) -> int:
        """How many of some drafted tokens, from the first on, may follow the output; none where the parser
        gives up on them."""
        if self._ended:
            return 0
        try:
            count = self._follow(drafted)
        except SurefootError:
            return 0
        ends = count < len(drafted) and self._is_end(drafted[count]) and self._parser.is_accepting()
        return count + ends

    def advance(self, token: int) -> None:
        """A token joined the output. Raises ValueError for one that may not follow it."""
        if self._ended:
            raise ValueError(f"token {token} follows the end of the output")
        if self._is_end(token):
            self._ended = True
            return
        if self._ahead and self._ahead[0] == token:
            del self._ahead[0]
        else:
            self._go_back(0)
            if not self._read(token):
                raise ValueError(f"token {token} may not follow the output")
        self._masks.pop(len(self._output), None)
        self._output.append(token)

    def _follow(self, drafted: Sequence[int]) -> int:
        """Reads as many of some drafted tokens as may follow, but no end, and returns how many."""
        same = 0
        while same < min(len(drafted), len(self._ahead)) and drafted[same] == self._ahead[same]:
            same += 1
        self._go_back(same)
        for token in drafted[same:]:
            if self._is_end(token) or not self._read(token):
                break
            self._ahead.append(token)
        return len(self._ahead)

    def _go_back(self, count: int) -> None:
        """Leaves the parser behind the output and `count` of the drafted tokens it has read."""
        surplus = len(self._ahead) - count
        if not surplus:
            return
        for place in range(len(self._output) + count + 1, len(self._output) + len(self._ahead) + 1):
            self._masks.pop(place, None)
        del self._ahead[count:]
        self._parser.rollback(surplus)
        self._check()

    def _read(self, token: int) -> bool:
        """Whether a token may follow; then the parser has it behind it."""
        known = 0 <= token < len(self._ends)
        taken = known and self._parser.try_consume_tokens([token]) == 1
        self._check()
        return taken

    def _mask(self) -> NDArray[np.bool_]:
        place = len(self._output) + len(self._ahead)
        if place not in self._masks:
            bits = self._parser.compute_bitmask()
            self._check()
            self._masks[place] = bits
        bits = self._masks[place]
        unpacked = np.unpackbits(np.frombuffer(bits, np.uint8), count=len(self._ends), bitorder="little")
        return unpacked.view(np.bool_)

    def _is_end(self, token: int) -> bool:
        return 0 <= token < len(self._ends) and bool(self._ends[token])

    def _check(self) -> None:
        """A parser that gave up never goes on; another one takes its place, for what was not committed may
        be why."""
        if not self._parser.is_error():
            return
        reason = _reason(self._parser.get_error())
        self._parser = self._compiled.deep_copy()
        self._parser.try_consume_tokens(self._output)
        self._ahead.clear()
        self._masks.clear()
        raise SurefootError(f"grammar: {reason}")


def _with_room(build: Callable[[], LLMatcher]) -> LLMatcher:
    """Runs a function on a stack on which no source of the allowed size overflows, which would end the
    process."""
    with _STACK_SIZE:
        usual = threading.stack_size(_STACK)
        try:
            with ThreadPoolExecutor(1) as pool:
                return pool.submit(build).result()
        finally:
            threading.stack_size(usual)


def _reason(error: str, located: bool = False) -> str:
    """llguidance's reason on one line, without its echo of the source, and the place only if it means
    something to the reader."""
    said = " ".join(re.split(r"\n\s*\d+ \| |\n<", error)[0].split())
    if said == _NO_TOKEN:
        return "no token of this model can go on where it would have to go on"
    if not located:
        said = re.sub(r"^at \d+\(\d+\): ", "", said)
    return said if len(said) <= _LONGEST else f"{said[: _LONGEST // 2]} … {said[-_LONGEST // 2 :]}"
