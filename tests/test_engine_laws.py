"""The promise, over random everything: coupled decoding gives plain decoding's tokens, whoever drafts."""

from __future__ import annotations

import random
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.drafters.base import Drafter
from surefoot.drafters.model import ModelDrafter
from surefoot.drafters.ngram import NgramDrafter
from surefoot.drafters.suffix import SuffixDrafter
from surefoot.engine import Engine
from surefoot.models.toy import ToyModel, random_table
from surefoot.types import SamplingParams, VerifyMode
from tests.harness import Expected, Scripted, assert_same, bushy, expected, knowing

DRAFTERS = ("perfect", "wrong", "half right", "ngram", "suffix", "suffix tree", "model", "same model", "tree")


@dataclass(frozen=True)
class World:
    """A target, the requests it is asked, and what each must get."""

    vocab_size: int
    order: int
    table_seed: int
    max_length: int
    end_ids: tuple[int, ...]
    requests: tuple[tuple[tuple[int, ...], SamplingParams], ...]

    def model(self, table_seed: int | None = None) -> ToyModel:
        seed = self.table_seed if table_seed is None else table_seed
        table = random_table(self.vocab_size, self.order, seed)
        return ToyModel(table, self.vocab_size, self.max_length, self.end_ids)

    def expected(self) -> list[Expected]:
        table = random_table(self.vocab_size, self.order, self.table_seed)
        return [
            expected(table, prompt, params, end_ids=self.end_ids, max_length=self.max_length)
            for prompt, params in self.requests
        ]


@st.composite
def sampling(draw: st.DrawFn, vocab_size: int) -> SamplingParams:
    max_tokens = draw(st.integers(1, 24))
    off = st.just(0.0)
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=draw(st.sampled_from((0.0, 0.3, 0.8, 1.0, 2.0))),
        top_p=draw(st.sampled_from((0.5, 0.95, 1.0))),
        top_k=draw(st.sampled_from((0, 0, 1, 3))),
        min_p=draw(st.sampled_from((0.0, 0.0, 0.1))),
        repetition_penalty=draw(st.sampled_from((1.0, 1.0, 1.3))),
        presence_penalty=draw(off | st.floats(-1, 2)),
        frequency_penalty=draw(off | st.floats(-1, 2)),
        logit_bias=draw(st.dictionaries(st.integers(0, vocab_size - 1), st.floats(-5, 5), max_size=2)),
        min_tokens=draw(st.integers(0, max_tokens)),
        stop_token_ids=draw(st.sampled_from(((), (1,)))),
        ignore_eos=draw(st.booleans()),
        seed=draw(st.integers(0, 2**64 - 1)),
        logprobs=draw(st.sampled_from((None, 0, 3))),
    )


@st.composite
def worlds(draw: st.DrawFn) -> World:
    vocab_size = draw(st.integers(3, 24))
    token = st.integers(0, vocab_size - 1)
    prompt = st.lists(token, min_size=1, max_size=12).map(tuple)
    return World(
        vocab_size,
        order=draw(st.integers(1, 2)),
        table_seed=draw(st.integers(0, 1000)),
        max_length=draw(st.sampled_from((13, 20, 64))),
        end_ids=draw(st.sampled_from(((), (0,)))),
        requests=tuple(draw(st.lists(st.tuples(prompt, sampling(vocab_size)), min_size=1, max_size=4))),
    )


def drafter_for(kind: str, world: World, answers: list[tuple[int, ...]], noise: int) -> Drafter:
    if kind == "ngram":
        return NgramDrafter()
    if kind.startswith("suffix"):
        return SuffixDrafter(pool=32, tree=kind == "suffix tree")
    if kind == "model":
        return ModelDrafter(world.model(world.table_seed + 1), max_rows=5)
    if kind == "same model":
        return ModelDrafter(world.model())
    wrong_from = {
        "perfect": lambda length: 99,
        "wrong": lambda length: 0,
        "half right": lambda length: (length * 7 + noise) % 5,
        "tree": lambda length: (length * 7 + noise) % 5,
    }[kind]
    script = knowing(answers, wrong_from)
    return Scripted(bushy(script, world.vocab_size) if kind == "tree" else script)


@settings(max_examples=400, deadline=None)
@given(
    world=worlds(),
    kind=st.sampled_from(DRAFTERS),
    draft_tokens=st.integers(1, 12),
    extra_rows=st.integers(1, 30),
    max_requests=st.integers(1, 4),
    noise=st.integers(0, 4),
)
def test_coupled_tokens_are_plain_decodings_whoever_drafts(
    world: World, kind: str, draft_tokens: int, extra_rows: int, max_requests: int, noise: int
) -> None:
    wanted = world.expected()
    answers = [(*prompt, *want.token_ids) for (prompt, _), want in zip(world.requests, wanted, strict=True)]
    engine = Engine(
        world.model(),
        drafter_for(kind, world, answers, noise),
        draft_tokens=draft_tokens,
        max_rows=draft_tokens + extra_rows,
        max_requests=max_requests,
    )
    prompts, params = zip(*world.requests, strict=True)
    results = engine.generate(list(prompts), list(params))
    for result, want in zip(results, wanted, strict=True):
        assert_same(result.choices[0], want)
        assert result.usage.completion_tokens == len(want.token_ids)
    if kind == "perfect" and len(world.requests) == 1:
        assert results[0].stats.accepted_tokens == results[0].stats.draft_tokens


@settings(max_examples=100, deadline=None)
@given(world=worlds(), kind=st.sampled_from(DRAFTERS), order=st.randoms(use_true_random=False))
def test_neighbours_and_their_order_change_nothing(world: World, kind: str, order: random.Random) -> None:
    """Each request alone, then all in a shuffled batch beside strangers without a seed."""
    wanted = world.expected()
    answers = [(*prompt, *want.token_ids) for (prompt, _), want in zip(world.requests, wanted, strict=True)]
    shuffled = list(range(len(world.requests))) * 2
    order.shuffle(shuffled)
    engine = Engine(world.model(), drafter_for(kind, world, answers, 1), draft_tokens=3, max_rows=16)
    numbers = {engine.add(*world.requests[i]): i for i in shuffled}
    engine.add((1, 2), SamplingParams(max_tokens=20))
    while engine.has_work:
        for chunk in engine.step():
            if chunk.result and chunk.request in numbers:
                assert_same(chunk.result.choices[0], wanted[numbers[chunk.request]])


@settings(max_examples=60, deadline=None)
@given(world=worlds(), mode=st.sampled_from(("rejection", "block")), kind=st.sampled_from(DRAFTERS))
def test_every_mode_is_greedy_equality_at_temperature_0(world: World, mode: VerifyMode, kind: str) -> None:
    greedy = [SamplingParams(max_tokens=p.max_tokens, temperature=0, seed=p.seed) for _, p in world.requests]
    prompts = [prompt for prompt, _ in world.requests]
    cold = World(**{**vars(world), "requests": tuple(zip(prompts, greedy, strict=True))})
    wanted = cold.expected()
    answers = [(*prompt, *want.token_ids) for prompt, want in zip(prompts, wanted, strict=True)]
    engine = Engine(cold.model(), drafter_for(kind, cold, answers, 2), draft_tokens=4, verify=mode)
    for result, want in zip(engine.generate(list(prompts), greedy), wanted, strict=True):
        assert_same(result.choices[0], want)


@settings(max_examples=60, deadline=None)
@given(world=worlds(), mode=st.sampled_from(("rejection", "block")), kind=st.sampled_from(DRAFTERS))
def test_the_other_modes_keep_the_books_too(world: World, mode: VerifyMode, kind: str) -> None:
    """Their tokens are their own, their counts and ends are everybody's; the same run repeats."""
    runs = []
    for _ in range(2):
        answers = [prompt + prompt for prompt, _ in world.requests]
        drafter = drafter_for(kind, world, answers, 3)
        engine = Engine(world.model(), drafter, draft_tokens=4, verify=mode)
        prompts, params = zip(*world.requests, strict=True)
        runs.append(engine.generate(list(prompts), list(params)))
    for first, again, (prompt, limits) in zip(*runs, world.requests, strict=True):
        assert first.token_ids == again.token_ids
        count = first.usage.completion_tokens
        assert count == len(first.token_ids) <= limits.max_tokens
        if first.finish_reason == "length":
            assert count == limits.max_tokens or count + len(prompt) == world.max_length
