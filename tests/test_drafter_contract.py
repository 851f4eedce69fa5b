"""What the engine makes of drafters that don't do what is asked of them."""

from __future__ import annotations

import numpy as np
import pytest

from surefoot.drafters.model import ModelDrafter
from surefoot.engine import Engine
from surefoot.models.toy import ToyModel, probability_table, random_table
from surefoot.types import VERIFY_MODES, Draft, SamplingParams, SurefootError, VerifyMode
from tests.harness import VOCAB_SIZE, Scripted

PARAMS = SamplingParams(seed=1, max_tokens=12)


def toy() -> ToyModel:
    return ToyModel(random_table(VOCAB_SIZE, 2, seed=1), VOCAB_SIZE)


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        (Draft((1, 2, 3, 4)), "4 tokens drafted, 3 allowed"),
        (Draft((1, 2), (-1, 4)), r"parent of node 1 is 4; allowed is \[-1, 0\]"),
        (Draft((1, 2), (-1,)), "a draft of 2 tokens has 1 parents"),
        (Draft((1, 2), (-1, 0.0)), r"parents \(-1, 0.0\) are not whole numbers"),  # type: ignore[arg-type]
        (Draft((VOCAB_SIZE,)), r"token 32 is out of range; allowed is \[0, 31\]"),
        (Draft((1.0, 2.0)), r"tokens \(1.0, 2.0\) are not whole numbers"),  # type: ignore[arg-type]
        (Draft(None), "tokens None are not whole numbers"),  # type: ignore[arg-type]
        (Draft((1,), probs=np.ones(VOCAB_SIZE)), r"probs have shape \[32\], not \[1, 32\]"),
        (Draft((1,), probs=np.ones((2, 32))), r"probs have shape \[2, 32\], not \[1, 32\]"),
        ((1, 2), "tuple proposed, not a Draft"),
        (None, "NoneType proposed, not a Draft"),
    ],
)
@pytest.mark.parametrize("verify", VERIFY_MODES)
def test_a_drafter_that_breaks_its_contract_is_named(draft: Draft, message: str, verify: VerifyMode) -> None:
    engine = Engine(toy(), Scripted(lambda tokens, budget: draft), draft_tokens=3, verify=verify)
    with pytest.raises(SurefootError, match=f"^drafter scripted: {message}"):
        engine.generate([1, 2], PARAMS)
    assert not engine.has_work


@pytest.mark.parametrize(
    ("proposed", "message"),
    [
        (None, "it proposed NoneType, not a list of drafts"),
        ([], "0 drafts proposed, 1 asked for"),
        ([Draft(), Draft()], "2 drafts proposed, 1 asked for"),
    ],
)
def test_a_drafter_that_answers_no_request_is_named(
    proposed: list[Draft], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = Scripted(lambda tokens, budget: Draft())
    monkeypatch.setattr(drafter, "propose", lambda requests: proposed)
    with pytest.raises(SurefootError, match=f"^drafter scripted: {message}"):
        Engine(toy(), drafter).generate([1, 2], PARAMS)


@pytest.mark.parametrize("verify", VERIFY_MODES)
def test_a_draft_model_whose_every_token_is_banned_drafts_no_further(verify: VerifyMode) -> None:
    """After token 2 it only knows the end, which is held back."""
    draft = ToyModel(probability_table({(2,): [1, 0, 0], (): [0, 0.5, 0.5]}), 3)
    target = ToyModel(probability_table({(): [0, 0.5, 0.5]}), 3)
    engine = Engine(target, ModelDrafter(draft), verify=verify)
    params = SamplingParams(seed=1, stop_token_ids=(0,), min_tokens=20, max_tokens=20)
    result, other = engine.generate([[1, 2], [1, 1]], params)
    assert len(result.token_ids) == len(other.token_ids) == 20
    assert result.stats.accepted_tokens > 0
