"""Sampling parameters: every field of a wrong type or size is named with what is allowed."""

from __future__ import annotations

import numpy as np
import pytest

from surefoot.sampling import History, target_probs
from surefoot.types import SamplingParams, SurefootError

WRONG = [
    ("max_tokens", 2.5, "2.5 is not a whole number; allowed is 1 or more"),
    ("max_tokens", 0, "0 is out of range; allowed is 1 or more"),
    ("top_k", 2.5, "2.5 is not a whole number; allowed is 0 or more"),
    ("n", 1.5, r"1.5 is not a whole number; allowed is \[1, 128\]"),
    ("logprobs", 2.5, r"2.5 is not a whole number; allowed is \[0, 20\]"),
    ("min_tokens", 1.5, r"1.5 is not a whole number; allowed is \[0, 256\]"),
    ("seed", 1.5, r"1.5 is not a whole number; allowed is \[0, 18446744073709551615\]"),
    ("seed", "a", r"'a' is not a whole number; allowed is \[0, 18446744073709551615\]"),
    ("temperature", None, r"None is not a number; allowed is \[0, 100\]"),
    ("temperature", "1", r"'1' is not a number; allowed is \[0, 100\]"),
    ("temperature", float("nan"), r"nan is out of range; allowed is \[0, 100\]"),
    ("top_p", 0, r"0 is out of range; allowed is \(0, 1\]"),
    ("repetition_penalty", 5e-324, r"5e-324 is out of range; allowed is \[1e-06, 100\]"),
    ("logit_bias", 3, "3 is not a mapping of token ids to numbers"),
    ("logit_bias", {1.5: 2}, "1.5 is not a whole number; allowed is 0 or more"),
    ("logit_bias", {1: "2"}, r"'2' is not a number; allowed is \[-100, 100\]"),
    ("stop_token_ids", 3, "3 is not a tuple of whole numbers"),
    ("stop_token_ids", "3", "'3' is not a tuple of whole numbers"),
    ("stop_token_ids", (1.5,), "1.5 is not a whole number; allowed is 0 or more"),
    ("stop", 3, "3 is not a tuple of strings"),
    ("stop", (3,), "3 is not a string"),
    ("bad_words", None, "None is not a tuple of strings"),
]


@pytest.mark.parametrize(("field", "value", "message"), WRONG)
def test_a_parameter_of_a_wrong_type_or_size_is_named(field: str, value: object, message: str) -> None:
    with pytest.raises(SurefootError, match=rf"^{field}.*: {message}"):
        SamplingParams(**{field: value})  # type: ignore[arg-type]


def test_numbers_of_other_kinds_become_plain_ones() -> None:
    params = SamplingParams(
        seed=np.uint64(2**63),  # type: ignore[arg-type]
        max_tokens=np.int32(7),  # type: ignore[arg-type]
        temperature=np.float32(0.5),  # type: ignore[arg-type]
        logit_bias={np.int64(3): np.float64(1)},  # type: ignore[dict-item]
        stop_token_ids=np.array([4]),  # type: ignore[arg-type]
        stop=["x"],  # type: ignore[arg-type]
    )
    assert params == SamplingParams(
        seed=2**63, max_tokens=7, temperature=0.5, logit_bias={3: 1.0}, stop_token_ids=(4,), stop=("x",)
    )
    [token], [stop] = params.logit_bias, params.stop_token_ids
    plain = (params.seed, params.max_tokens, params.temperature, token, params.logit_bias[3], stop)
    assert [type(value) for value in plain] == [int, int, float, int, float, int]


def test_the_least_repetition_penalty_leaves_logits_finite() -> None:
    logits = np.array([3e38, 1, -3e38], np.float32)
    params = SamplingParams(repetition_penalty=1e-6, top_p=1)
    candidates = target_probs(logits, params, History(prompt=(0, 1, 2)))
    assert candidates.ids.tolist() == [0]
