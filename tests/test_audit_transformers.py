"""Auditing transformers: right modes pass, broken ones are caught, near-ties and failures told from both."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopPLogitsWarper
from transformers.cache_utils import DynamicCache
from transformers.generation import candidate_generator, utils

from surefoot.audit.assisted import MODES, AssistedPlan, audit_transformers
from surefoot.audit.assisted.answers import power_reached, sampled_check
from surefoot.audit.assisted.greedy import first_difference, greedy_check
from surefoot.audit.assisted.load import Loaded, load, quiet
from surefoot.audit.assisted.modes import assistance, modes_of
from surefoot.audit.assisted.plain import Generation
from surefoot.audit.assisted.plan import Mode
from surefoot.audit.assisted.record import rounds_of
from surefoot.audit.assisted.run import CONTROL, play
from surefoot.audit.assisted.sampled import Game, new_game
from surefoot.audit.budget import Budget
from surefoot.audit.report import Check, Report
from surefoot.evidence import Evidence
from surefoot.types import SurefootError
from tests.tiny import VOCAB, tiny_checkpoint_folder, tiny_gguf

PROMPTS = ("hello there, hello there", "the hell")
Generator = candidate_generator.AssistedCandidateGenerator
Translator = candidate_generator.AssistantToTargetTranslator


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A target, a draft model of the same vocabulary, and one of another: it has "or" as a token."""
    make = tmp_path_factory.mktemp
    other = tiny_checkpoint_folder(
        "llama", make("other"), num_hidden_layers=1, vocab_size=VOCAB + 3, tie_word_embeddings=False
    )
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["or"] = len(tokenizer["model"]["vocab"])
    tokenizer["model"]["merges"].append(["o", "r"])
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    return {
        "target": str(tiny_checkpoint_folder("llama", make("target"), num_hidden_layers=2)),
        "draft": str(tiny_checkpoint_folder("llama", make("draft"), num_hidden_layers=1)),
        "other": str(other),
    }


@pytest.fixture(scope="module")
def target(folders: dict[str, str]) -> Loaded:
    """Of a single layer: its own draft, too."""
    return load(folders["draft"])


@pytest.fixture(scope="module")
def other(folders: dict[str, str]) -> Loaded:
    return load(folders["other"])


@pytest.fixture(autouse=True)
def silent() -> Iterator[None]:
    with quiet():
        yield


def plan(**changes: Any) -> AssistedPlan:
    settings: dict[str, Any] = {"max_tokens": 16, "draft_tokens": 2, "detect": 0.3, "modes": ("assistant",)}
    return AssistedPlan(PROMPTS, **{**settings, **changes})


def audit(folders: dict[str, str], tokens: int, assistant: str | None = "draft", **changes: Any) -> Report:
    helper = None if assistant is None else folders[assistant]
    return audit_transformers(folders["target"], helper, plan(**changes), Budget(tokens=tokens))


def greedy(target: Loaded, assistant: Loaded | None = None, mode: Mode = "assistant") -> Check:
    options = plan()
    helped = assistance(mode, target, assistant or target, options)
    return greedy_check(Generation(target, options), helped, options, Budget(tokens=10**6))


def sampled(
    target: Loaded, assistant: Loaded | None = None, mode: Mode = "assistant", *, tokens: int, **changes: Any
) -> Check:
    """Goes on until a loss is found or the tokens are spent, unless `detect` is among the changes."""
    options = plan(**{"max_tokens": 32, "detect": 1e-3, **changes})
    helped = assistance(mode, target, assistant or target, options)
    game, ending = play(Generation(target, options), helped, options, Budget(tokens=tokens))
    return sampled_check("a mode: sampled", game, options.detect, ending, assisted=True)


def of_kind(report: Report, kind: str) -> list[Check]:
    """The checks of assisted modes, greedy or sampled."""
    return [check for check in report.checks if check.name.endswith(f": {kind}")]


def test_every_mode_gets_a_verdict_and_none_of_them_is_a_loss(folders: dict[str, str]) -> None:
    report = audit(folders, 400, modes=None, max_tokens=8)
    assert len(of_kind(report, "greedy")) == len(of_kind(report, "sampled")) == len(MODES)
    assert {check.verdict for check in of_kind(report, "greedy")} == {"pass"}
    assert {check.verdict for check in report.checks} <= {"pass", "undecided"}
    assert all(check.tokens > 0 for check in report.checks)
    assert all(check.facts["drafted"] > 0 for check in report.checks if check.name != CONTROL)


def test_enough_tokens_make_a_pass(folders: dict[str, str]) -> None:
    report = audit(folders, 10**6, "target", detect=0.3, temperature=1, top_p=1, max_tokens=32)
    assert [check.verdict for check in report.checks] == ["pass"] * 3
    assert report.exit_code == 0


def test_at_temperature_0_only_greedy_is_asked_about(folders: dict[str, str]) -> None:
    report = audit(folders, 200, temperature=0)
    assert [check.name for check in report.checks] == ["assistant_model: greedy"]


@pytest.mark.parametrize(("detect", "verdict"), [(0.3, "pass"), (0.1, "undecided")])
def test_as_many_tokens_as_the_bias_to_be_seen_needs_make_a_pass(
    detect: float, verdict: str, target: Loaded
) -> None:
    """16 would show a difference in every third token; the budget ends it after one prompt."""
    options = plan(detect=detect)
    mode = assistance("assistant", target, target, options)
    check = greedy_check(Generation(target, options), mode, options, Budget(tokens=17))
    assert (check.verdict, check.tokens, check.facts["prompts"]) == (verdict, 16, 1)
    assert "a difference in one token of 3 would have been found" in check.summary


def test_a_spent_budget_leaves_everything_undecided(target: Loaded) -> None:
    options = plan()
    generation, mode = Generation(target, options), assistance("assistant", target, target, options)
    game, ending = play(generation, mode, options, Budget(tokens=0))
    check = sampled_check("sampled", game, options.detect, ending, assisted=True)
    for spent in (greedy_check(generation, mode, options, Budget(tokens=0)), check):
        assert (spent.verdict, spent.tokens) == ("undecided", 0)
        assert spent.summary == "the budget was spent before it began"


def test_loading_says_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tiny_gguf("llama", tmp_path / "tiny.gguf")
    with quiet():
        load(str(path))
    assert capfd.readouterr() == ("", "")


def test_loading_is_not_on_the_budget(folders: dict[str, str]) -> None:
    seconds = iter([0.0, *[50.0] * 10**6])
    report = audit_transformers(
        folders["draft"],
        None,
        plan(temperature=0, modes=("lookup",)),
        Budget(seconds=1, clock=lambda: next(seconds)),
    )
    assert (report.checks[0].verdict, report.seconds) == ("pass", 0)


def test_what_the_model_itself_asks_for_is_applied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tiny_checkpoint_folder("llama", tmp_path, num_hidden_layers=1)
    settings = json.loads((own / "generation_config.json").read_text())
    (own / "generation_config.json").write_text(json.dumps({**settings, "repetition_penalty": 1.8}))
    options = plan(temperature=0.4, top_p=1, max_tokens=32, detect=0.25)
    generation = Generation(load(str(own)), options)
    game, _ = play(generation, None, options, Budget(tokens=500))
    assert not game.over
    assert power_reached(game, options.detect, assisted=False)
    processors = LogitsProcessorList([TemperatureLogitsWarper(0.4)])
    monkeypatch.setattr(generation, "processors", lambda prompt, sampled: processors)
    game, _ = play(generation, None, plan(detect=0.01), Budget(tokens=500))
    assert game.evidence.found


# Faults


def altered(change: Callable[[Any, Any, Any], tuple[Any, Any]]) -> Callable[..., Any]:
    """get_candidates, its answer changed where there is a draft."""
    right = Generator.get_candidates

    def get_candidates(self: Any, input_ids: Any, **kwargs: Any) -> Any:
        ids, logits = right(self, input_ids, **kwargs)
        return (ids, logits) if logits is None else change(self, ids, logits)

    return get_candidates


def greedy_draft(self: Any, ids: Any, logits: Any) -> tuple[Any, Any]:
    """Of one token; its q stays that of a sampled draft."""
    return torch.cat([ids[:, :-1], logits[:, -1].argmax(-1, keepdim=True)], -1), logits


def raw_q(self: Any, ids: Any, logits: Any) -> tuple[Any, Any]:
    """Of one token: the draft model's row before any transform."""
    with torch.no_grad():
        return ids, self.assistant_model(ids[:, :-1], use_cache=False).logits[:, -1:]


def accept_all(ids: Any, logits: Any, length: int, rows: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Every drafted token, and one more from the target."""
    last = torch.multinomial(rows[:, -1].softmax(-1), 1)
    return torch.cat([ids[:, -length:], last], -1), torch.tensor(length)


def no_residual(ids: Any, logits: Any, length: int, rows: Any, **kwargs: Any) -> tuple[Any, Any]:
    """A rejected token is replaced from the target instead of from what the draft left of it."""
    p, q, drafted = rows.softmax(-1)[0], logits.softmax(-1)[0], ids[0, -length:]
    n = 0
    while n < length and torch.rand(()) <= p[n, drafted[n]] / q[n, drafted[n]]:
        n += 1
    return torch.cat([drafted[:n], torch.multinomial(p[n], 1)])[None], torch.tensor(n)


FAULTS: dict[str, tuple[Any, str, Any, str]] = {
    "a greedy draft with a sampled q": (Generator, "get_candidates", altered(greedy_draft), "#32867"),
    "raw q with a warped draft": (Generator, "get_candidates", altered(raw_q), "#47932"),
    "every draft is accepted": (utils, "_speculative_sampling", accept_all, ""),
    "no residual": (utils, "_speculative_sampling", no_residual, ""),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_sampled_drafts_are_caught(
    fault: str, target: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, name, broken, cause = FAULTS[fault]
    monkeypatch.setattr(where, name, broken)
    check = sampled(target, tokens=1500, draft_tokens=1, temperature=0.7, top_p=0.9)
    assert check.verdict == "loss"
    assert any(cause in line for line in check.details)
    assert greedy(target).verdict == "pass"


def test_right_drafts_are_no_loss(target: Loaded) -> None:
    check = sampled(target, tokens=200, draft_tokens=1, temperature=0.7, top_p=0.9)
    assert (check.verdict, check.facts["impossible"]) == ("undecided", 0)
    assert check.summary.startswith("the budget ended it: ")


def test_a_stale_row_after_a_rollback_is_caught(target: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    crop = DynamicCache.crop
    monkeypatch.setattr(DynamicCache, "crop", lambda self, length: crop(self, min(length + 1, 0)))
    check = greedy(target, mode="lookup")
    assert (check.verdict, check.facts["near_ties"]) == ("loss", 0)
    assert check.details[0].startswith("loss: prompt 0, token ")


def test_drafts_judged_behind_another_token_are_caught(
    target: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(self: Any, ids: Any, logits: Any) -> tuple[Any, Any]:
        ids = ids.clone()
        ids[0, -logits.shape[1] - 1] = 7
        return ids, logits

    monkeypatch.setattr(Generator, "get_candidates", altered(change))
    assert greedy(target).verdict == "loss"
    assert sampled(target, tokens=1500).verdict == "loss"


def translated(order: Callable[[Any], Any]) -> Callable[..., Any]:
    """get_target_logits with the columns of the cut head, in their order, for the ids that `order` says."""

    def get_target_logits(self: Any, logits: Any) -> Any:
        rows = torch.full((*logits.shape[:-1], self.target_vocab_size), -torch.inf)
        rows[..., order(self._assistant_to_target_input_ids[self.assistant_overlap_token_ids])] = logits
        return rows

    return get_target_logits


@pytest.mark.parametrize(
    ("order", "tokens", "lost"), [(lambda ids: ids, 100, False), (lambda ids: ids.flip(0), 500, True)]
)
def test_drafts_of_another_vocabulary(
    order: Any, tokens: int, lost: bool, target: Loaded, other: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Translator, "get_target_logits", translated(order))
    check = sampled(target, other, tokens=tokens, temperature=0.6)
    assert (check.verdict == "loss") is lost
    assert check.facts["failure"] is None
    assert any("belongs to other tokens" in line for line in check.details) is lost
    assert greedy(target, other).verdict == "pass"


def test_a_mode_that_raises_is_undecided_and_says_so(
    folders: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def get_candidates(*args: Any, **kwargs: Any) -> Any:
        raise ValueError("the first line\nthe second")

    monkeypatch.setattr(Generator, "get_candidates", get_candidates)
    report = audit(folders, 300)
    for check in (*of_kind(report, "greedy"), *of_kind(report, "sampled")):
        assert check.verdict == "undecided"
        assert check.summary.startswith("fails: ValueError: the first line;")


def test_without_a_control_that_holds_nothing_is_claimed(
    folders: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Generation, "plain", lambda self, prompt, **_: (9,) * 16)
    report = audit(folders, 300)
    assert {check.verdict for check in report.checks[1:]} == {"undecided"}
    assert report.checks[-1].tokens == 0


def test_a_q_that_lies_is_no_pass_even_where_no_bias_shows(
    target: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Generator, "get_candidates", altered(greedy_draft))
    monkeypatch.setattr(Evidence, "found", property(lambda self: len(self.sights()) == 2))  # of drafts alone
    check = sampled(target, tokens=40, draft_tokens=1, detect=0.9)
    assert check.verdict == "undecided"
    assert check.summary.startswith("drafts don't follow the q they come with, though no bias shows yet: ")


# Near-ties


def twin_head(model: Any, token: int) -> None:
    """Gives `token` + 1 the same logit as `token`, always."""
    head = torch.nn.Linear(model.lm_head.in_features, model.lm_head.out_features, bias=False)
    with torch.no_grad():
        head.weight.copy_(model.lm_head.weight)
        head.weight[token + 1] = head.weight[token]
    model.lm_head = head


@pytest.mark.parametrize(
    ("swapped", "verdict", "ties"), [(1, "pass", 1), (2, "loss", 0), (None, "loss", 0), (0, "pass", 0)]
)
def test_near_ties_are_told_from_losses(
    swapped: int | None, verdict: str, ties: int, target: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = target.copy()
    settings = plan()
    prompt = Generation(own, settings).prompts[0]
    twin_head(own.model, Generation(own, settings).plain_greedy(prompt)[0])
    generation = Generation(own, settings)

    right = Generation.assisted

    def assisted(self: Any, prompt: tuple[int, ...], *args: Any, **kwargs: Any) -> tuple[int, ...]:
        tokens = right(self, prompt, *args, **kwargs)
        if prompt != self.prompts[0]:
            return tokens
        return tokens[:5] if swapped is None else (tokens[0] + swapped, *tokens[1:])

    monkeypatch.setattr(Generation, "assisted", assisted)
    mode = assistance("lookup", own, None, settings)
    check = greedy_check(generation, mode, settings, Budget())
    assert (check.verdict, check.facts["near_ties"]) == (verdict, ties)
    assert len(check.details) == (swapped != 0)


def test_a_difference_names_its_place_and_gap(target: Loaded) -> None:
    generation = Generation(target, plan())
    prompt = generation.prompts[0]
    plain = generation.plain_greedy(prompt)
    row = generation.logits(prompt, plain[:3])[3].numpy()
    other = int(np.argsort(row)[-2])
    found = first_difference(generation, 0, prompt, plain, (*plain[:3], other, *plain[4:]))
    assert found is not None
    assert (found.at, found.plain, found.assisted) == (3, plain[3], other)
    assert found.gap == pytest.approx(row.max() - row[other], abs=1e-4)
    assert first_difference(generation, 0, prompt, plain, plain) is None


# Places and edges


def test_rounds_cover_the_text_and_the_model_is_left_as_it_was(
    target: Loaded, folders: dict[str, str]
) -> None:
    generation, settings = Generation(target, plan(draft_tokens=3)), plan(draft_tokens=3)
    mode = assistance("growing", target, load(folders["draft"]), settings)
    before = set(vars(target.model))
    with rounds_of(target.model) as rounds:
        tokens = generation.assisted(generation.prompts[0], mode, sampled=True, seed=5)
    assert set(vars(target.model)) == before
    assert len(rounds[0].tokens) == 3
    text = (*generation.prompts[0], *tokens)
    ends = [*(later.start for later in rounds[1:]), len(text)]
    for draft, end in zip(rounds, ends, strict=True):
        made = text[draft.start : end]
        assert 1 <= len(made) <= len(draft.tokens) + 1
        assert made[:-1] == draft.tokens[: len(made) - 1]


class Rows:
    """Stands for a target whose every row is the same."""

    def __init__(self, probs: list[float], top_p: float) -> None:
        self._row = torch.tensor(probs).log()
        self._processors = LogitsProcessorList([TopPLogitsWarper(top_p)])

    def processors(self, prompt: Any, sampled: bool) -> Any:
        return self._processors

    def logits(self, prompt: Any, tokens: Any) -> Any:
        return self._row.repeat(len(tokens) + 1, 1)


@pytest.mark.parametrize(
    ("token", "scored", "edge", "impossible"), [(1, 1, 0, 0), (2, 0, 1, 0), (3, 0, 0, 1)]
)
def test_a_token_just_outside_the_nucleus_is_no_loss(
    token: int, scored: int, edge: int, impossible: int
) -> None:
    game = played(Rows([0.5, 0.3, 0.15, 0.05], top_p=0.79995), (token,))
    assert (game.evidence.tokens, game.edge, len(game.impossible)) == (scored, edge, impossible)
    assert game.over == bool(impossible)


def played(rows: Rows, tokens: tuple[int, ...]) -> Game:
    game = new_game(0.01, 2, transformed=True, assisted=True)
    game.add(rows, (0,), tokens, [])  # type: ignore[arg-type]
    return game


# Mistakes


def test_without_transformers_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(SurefootError, match=r"pip install 'surefoot\[transformers\]'$"):
        audit_transformers("smollm2-135m-instruct", None, plan(), Budget())


def test_an_older_transformers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.__version__", "4.57.0")
    with pytest.raises(SurefootError, match=r"surefoot\[transformers\]' \(here is 4\.57\.0\)$"):
        audit_transformers("smollm2-135m-instruct", None, plan(), Budget())


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"prompts": ()}, "prompts: none"),
        ({"prompts": ("a", "")}, "prompts: none, or an empty one"),
        ({"temperature": -1}, r"temperature: -1 is out of range; allowed is \[0, 100\]"),
        ({"draft_tokens": 0}, r"draft_tokens: 0 is out of range; allowed is \[1, 64\]"),
        ({"alpha": 1}, r"alpha: 1 is out of range; allowed is \(0, 1\)"),
        ({"detect": float("nan")}, "detect: nan is out of range"),
        ({"tie_gap": -1}, "tie_gap: -1 is out of range; allowed is 0 or more"),
        ({"modes": ("medusa",)}, "modes: 'medusa' is none; there are assistant, "),
    ],
)
def test_a_plan_names_what_is_wrong(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(SurefootError, match=text):
        AssistedPlan(**{"prompts": PROMPTS, **changes})


def test_modes_that_cant_be_had_are_refused(target: Loaded) -> None:
    assert modes_of(target, None, plan(modes=None)) == ("lookup",)
    with pytest.raises(
        SurefootError, match=r"modes: early-exit can't be audited: .* has no layer to leave out"
    ):
        modes_of(target, target, plan(modes=("early-exit",)))
    with pytest.raises(SurefootError, match="modes: growing can't be audited: it needs an assistant"):
        modes_of(target, None, plan(modes=("lookup", "growing")))


def test_a_folder_that_transformers_cant_load_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(SurefootError, match=rf"^transformers can't load {tmp_path}: \w+: [^\n]+$"):
        audit_transformers(str(tmp_path), None, plan(), Budget())


def test_a_plain_generate_that_fails_is_the_users_to_mend(
    target: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    generation = Generation(target, plan())
    monkeypatch.setattr(target.model, "generate", None, raising=False)
    with pytest.raises(SurefootError, match=r"plain generate of .* fails: TypeError: "):
        generation.plain(generation.prompts[0], sampled=False)
