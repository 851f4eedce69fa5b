"""Samplers as somebody might write them: right ones, and ones with a fault that some engine has had."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from surefoot.testing.trial import Sampler
from surefoot.types import Draft, Verdict

Tokens = list[int]


# Right ones


def by_tokens(target_probs: Any, draft_probs: Any, draft_tokens: Any, generator: Any) -> Tokens:
    """Leviathan et al. 2211.17192, with `choice`."""
    kept: Tokens = []
    for p, q, token in zip(target_probs, draft_probs, draft_tokens, strict=False):
        if not generator.random() * q[token] < p[token]:
            excess = np.maximum(p - q, 0)
            return [*kept, int(generator.choice(len(p), p=excess / excess.sum()))]
        kept.append(int(token))
    return [*kept, int(generator.choice(len(target_probs[-1]), p=target_probs[-1]))]


def by_inverse(target_probs: Any, draft_probs: Any, draft_tokens: Any, generator: Any) -> Any:
    """The same from one array of uniforms, cumulated probabilities, and constants that guard."""
    size = len(draft_tokens)
    places = np.arange(size)
    ratios = target_probs[places, draft_tokens] / np.maximum(draft_probs[places, draft_tokens], 1e-10)
    accepted = generator.random(size) < np.minimum(1.0, ratios)
    kept = size if accepted.all() else int(accepted.argmin())
    row = target_probs[kept]
    if kept < size:
        row = np.clip(row - draft_probs[kept], 0.0, None)
        row /= row.sum()
    token = np.searchsorted(np.cumsum(row), generator.uniform(), side="right")
    return np.append(draft_tokens[:kept], token)


def by_multinomial(target_probs: Any, draft_probs: Any, draft_tokens: Any, generator: Any) -> Any:
    """The other side of each uniform, and arrays that are written to."""
    for i, token in enumerate(draft_tokens):
        if 1 - generator.uniform(0.0, 2.0) / 2 > target_probs[i, token] / draft_probs[i, token]:
            target_probs[i] -= draft_probs[i]
            target_probs[i][target_probs[i] < 0] = 0
            target_probs[i] /= target_probs[i].sum()
            draft_tokens[i] = np.argmax(generator.multinomial(1, target_probs[i]))
            return draft_tokens[: i + 1]
    return (*draft_tokens, int(np.argmax(generator.multinomial(1, target_probs[-1]))))


def by_rule(rule: Callable[..., Verdict]) -> Sampler:
    """One of `verify`'s, or a mutant of theirs."""

    def sampler(target_probs: Any, draft_probs: Any, draft_tokens: Any, generator: Any) -> Tokens:
        verdict = rule(
            Draft(tuple(draft_tokens.tolist()), probs=draft_probs),
            lambda node: target_probs[node + 1],
            lambda node: generator.random(),
            lambda row, node: int(generator.choice(len(row), p=row)),
        )
        return [*(int(draft_tokens[node]) for node in verdict.path), verdict.next_token]

    return sampler


def by_blocks(
    *,
    early_break: bool = False,
    token_residual: bool = False,
    guarded: bool = True,
) -> Sampler:
    """Sun et al. 2403.10444, written out; each argument but the last puts in a fault."""

    def sampler(target_probs: Any, draft_probs: Any, draft_tokens: Any, generator: Any) -> Tokens:
        size, reach, kept, weights = len(draft_tokens), 1, 0, None
        for i in range(size + 1):
            if i:
                token = draft_tokens[i - 1]
                reach = min(1, reach * target_probs[i - 1][token] / draft_probs[i - 1][token])
            if i == size:
                threshold, excess = reach, target_probs[size]
            else:
                excess = np.maximum(reach * target_probs[i] - draft_probs[i], 0)
                mass = excess.sum()
                whole = mass + 1 - reach
                threshold = mass / whole if whole > 0 or not guarded else 1
                if token_residual:
                    excess = np.maximum(target_probs[i] - draft_probs[i], 0)
            if i == 0 or generator.random() < threshold:
                kept, weights = i, excess
            elif early_break:
                break
        assert weights is not None
        row = weights / weights.sum() if weights.sum() > 0 else target_probs[kept]
        return [*draft_tokens[:kept].tolist(), int(generator.choice(len(row), p=row))]

    return sampler


def by_race(target_probs: Any, draft_probs: Any, draft_tokens: Any, generator: Any) -> Tokens:
    """Draws by exponential races, which nothing but running shows."""

    def draw(row: Any) -> int:
        times = generator.exponential(size=len(row)) / np.where(row > 0, row, 1)
        return int(np.where(row > 0, times, np.inf).argmin())

    for i, (p, q, token) in enumerate(zip(target_probs, draft_probs, draft_tokens, strict=False)):
        if not generator.random() * q[token] < p[token]:
            return [*draft_tokens[:i].tolist(), draw(np.maximum(p - q, 0))]
    return [*draft_tokens.tolist(), draw(target_probs[-1])]


def by_torch(target_probs: Any, draft_probs: Any, draft_tokens: Any, generator: Any) -> Any:
    import torch

    p, q, tokens = map(torch.from_numpy, (target_probs, draft_probs, draft_tokens))
    places = torch.arange(len(tokens))
    uniforms = torch.rand(len(tokens), generator=generator)
    accepted = uniforms * q[places, tokens] < p[places, tokens]
    kept = int(accepted.cumprod(0).sum())
    row = p[kept] if kept == len(tokens) else (p[kept] - q[kept]).clamp(min=0)
    return torch.cat([tokens[:kept], torch.multinomial(row, 1, generator=generator)])


def plainly(target_probs: Any, draft_probs: Any, draft_tokens: Any, generator: Any) -> Tokens:
    """Draws from the target, and goes on while the draft says the same."""
    tokens: Tokens = []
    for i, row in enumerate(target_probs):
        tokens.append(int(generator.choice(len(row), p=row)))
        if i == len(draft_tokens) or tokens[-1] != draft_tokens[i]:
            break
    return tokens


def without_a_bonus(target_probs: Any, draft_probs: Any, draft_tokens: Any, generator: Any) -> Tokens:
    """Wasteful, but what it does return is right."""
    return by_tokens(target_probs, draft_probs, draft_tokens, generator)[: len(draft_tokens)]


# Wrong ones: by tokens, with something in its place


def faulty(
    *,
    accept: Callable[[Any, Any, int, Any, int], Any] | None = None,
    recover: Callable[[Any, Any, int], Any] | None = None,
    bonus: Callable[[Any, Any], Any] | None = None,
    row_shift: int = 0,
) -> Sampler:
    """accept(p, q, token, generator, i). recover(p, q, token) → the weights to draw from, made to sum to 1.
    bonus(target_probs, draft_probs) → the row for it. row_shift: of the draft's row that is read."""

    def sampler(target_probs: Any, draft_probs: Any, draft_tokens: Any, generator: Any) -> Tokens:
        kept: Tokens = []
        for i, token in enumerate(draft_tokens):
            p, q = target_probs[i], draft_probs[max(0, i - row_shift)]
            if accept is None:
                stands = generator.random() * q[token] < p[token]
            else:
                stands = accept(p, q, token, generator, i)
            if not stands:
                weights = np.maximum(p - q, 0) if recover is None else recover(p, q, token)
                weights = weights / weights.sum() if weights.sum() > 0 else p
                return [*kept, int(generator.choice(len(p), p=weights))]
            kept.append(int(token))
        row = target_probs[-1] if bonus is None else bonus(target_probs, draft_probs)
        return [*kept, int(generator.choice(len(row), p=row))]

    return sampler


def one_hot(row: Any) -> Any:
    found = row * 0
    found[row.argmax()] = 1
    return found


def squared(row: Any) -> Any:
    """Colder than it should be."""
    return row * row / (row * row).sum()


def unnormalised_residual(target_probs: Any, draft_probs: Any, draft_tokens: Any, generator: Any) -> Tokens:
    """`multinomial` gives what is missing to the last token."""
    for i, (p, q, token) in enumerate(zip(target_probs, draft_probs, draft_tokens, strict=False)):
        if not generator.random() * q[token] < p[token]:
            counts = generator.multinomial(1, np.maximum(p - q, 0))
            return [*draft_tokens[:i].tolist(), int(np.argmax(counts))]
    return [*draft_tokens.tolist(), int(np.argmax(generator.multinomial(1, target_probs[-1])))]


def one_uniform(target_probs: Any, draft_probs: Any, draft_tokens: Any, generator: Any) -> Tokens:
    """Every position is tested with the same uniform."""
    u = generator.random()
    for i, (p, q, token) in enumerate(zip(target_probs, draft_probs, draft_tokens, strict=False)):
        if not u * q[token] < p[token]:
            weights = np.maximum(p - q, 0)
            return [*draft_tokens[:i].tolist(), int(generator.choice(len(p), p=weights / weights.sum()))]
    return [*draft_tokens.tolist(), int(generator.choice(len(p), p=target_probs[-1]))]


def uniform_used_again(target_probs: Any, draft_probs: Any, draft_tokens: Any, generator: Any) -> Tokens:
    """The uniform that rejected a token draws the next one as well."""
    for i, (p, q, token) in enumerate(zip(target_probs, draft_probs, draft_tokens, strict=False)):
        u = generator.random()
        if not u * q[token] < p[token]:
            weights = np.maximum(p - q, 0)
            bounds = np.cumsum(weights / weights.sum())
            return [*draft_tokens[:i].tolist(), int(np.searchsorted(bounds, u, side="right"))]
    return [*draft_tokens.tolist(), int(generator.choice(len(p), p=target_probs[-1]))]


WRONG: dict[str, tuple[Sampler, str]] = {
    "plain resample after a rejection": (faulty(recover=lambda p, q, token: p), "draft position 1"),
    "residual without the drafted token": (
        faulty(recover=lambda p, q, token: p * (np.arange(len(p)) != token)),
        "draft position 1",
    ),
    "residual as |p - q|": (faulty(recover=lambda p, q, token: abs(p - q)), "draft position 1"),
    "residual not normalised": (unnormalised_residual, "draft position 1"),
    "accept where p >= q, else resample": (
        faulty(accept=lambda p, q, token, g, i: p[token] >= q[token], recover=lambda p, q, token: p),
        "draft position 1",
    ),
    "accept with probability p": (
        faulty(accept=lambda p, q, token, g, i: g.random() < p[token]),
        "draft position 1",
    ),
    "first token unverified": (
        faulty(accept=lambda p, q, token, g, i: i == 0 or g.random() * q[token] < p[token]),
        "draft position 1",
    ),
    "ratio upside down": (
        faulty(accept=lambda p, q, token, g, i: g.random() * p[token] < q[token]),
        "draft position 1",
    ),
    "q as if it were an argmax": (
        faulty(accept=lambda p, q, token, g, i: g.random() * one_hot(q)[token] < p[token]),
        "draft position 1",
    ),
    "lenient acceptance": (
        faulty(accept=lambda p, q, token, g, i: g.random() * q[token] * 9 / 10 < p[token]),
        "draft position 1",
    ),
    "target colder than it is": (
        faulty(
            accept=lambda p, q, token, g, i: g.random() * q[token] < squared(p)[token],
            recover=lambda p, q, token: np.maximum(squared(p) - q, 0),
        ),
        "draft position 1",
    ),
    "bonus from another temperature": (faulty(bonus=lambda p, q: squared(p[-1])), r"\(the bonus\)"),
    "bonus from the last draft row": (faulty(bonus=lambda p, q: q[-1]), r"\(the bonus\)"),
    "bonus one row early": (faulty(bonus=lambda p, q: p[-2]), r"\(the bonus\)"),
    "q of the position before": (faulty(row_shift=1), "draft position 2"),
    "one uniform for all positions": (one_uniform, "draft position 2 of 2"),
    "a uniform used again": (uniform_used_again, "draft position 1"),
    "block rule with an early break": (by_blocks(early_break=True), "draft position 1 of 2"),
    "block rule with the token rule's residual": (by_blocks(token_residual=True), "draft position"),
    "block rule without 0 / 0": (by_blocks(guarded=False), "draft position|raised RuntimeWarning"),
    "accept at equality": (
        faulty(accept=lambda p, q, token, g, i: g.random() <= p[token] / q[token]),
        "where a uniform is exactly 0",
    ),
    "accept below equality": (
        faulty(
            accept=lambda p, q, token, g, i: 1 - g.random() < p[token] / q[token],
            recover=lambda p, q, token: np.maximum(p - q, 0) / np.maximum(p - q, 0).sum(),
        ),
        "where a uniform is exactly 0, as random.. may be, it raised ZeroDivisionError",
    ),
}
