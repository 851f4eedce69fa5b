"""Sampled answers of one server."""

from __future__ import annotations

from surefoot.audit.servers.answers import parse
from surefoot.audit.servers.asking import Call, Server
from surefoot.audit.servers.plan import ServerPlan
from surefoot.audit.servers.scoring import Sample


def sampled_calls(server: Server, plan: ServerPlan, number: int) -> list[Call]:
    """Sample `number` of every prompt. Log probabilities are asked for only where tokens have no ids.

    A speculative server may decode plainly for whoever wants log probabilities, and would then not be seen.
    """
    dialect = server.dialect
    return [
        Call(
            "sampled",
            prompt,
            number,
            dialect.path,
            dialect.request(
                text,
                max_tokens=plan.max_tokens,
                temperature=plan.temperature,
                top_k=plan.top_k,
                logprobs=not dialect.ids,
            ),
        )
        for prompt, text in enumerate(plan.prompts)
    ]


def ask_samples(server: Server, plan: ServerPlan, number: int) -> list[Sample]:
    """Those of them that were answered."""
    calls = sampled_calls(server, plan, number)
    answered = zip(calls, server.answers(calls), strict=True)
    return [Sample(call.prompt, number, parse(payload)) for call, payload in answered if payload is not None]
