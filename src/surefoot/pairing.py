"""Opens what an engine is asked for by name, and checks that target and drafter fit together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from surefoot.drafters.base import Drafter
from surefoot.drafters.model import ModelDrafter
from surefoot.drafters.ngram import NgramDrafter
from surefoot.drafters.suffix import SuffixDrafter
from surefoot.models.base import Cache, Model
from surefoot.types import SurefootError

if TYPE_CHECKING:
    from surefoot.text import Tokenizer

NO_DRAFT = "none"
NGRAM = "ngram"
SUFFIX = "suffix"
LOOKUPS = (NGRAM, SUFFIX)
"""Drafters that copy from text, and so cost next to nothing."""

POOL = 100_000
"""Tokens of the latest outputs that requests draft from where drafts are shared; about 15 MB."""


class Loaded(Protocol):
    """What `surefoot.loading.load_model` returns, as far as the engine needs it."""

    @property
    def name(self) -> str: ...

    @property
    def model(self) -> Model: ...

    @property
    def tokenizer(self) -> Tokenizer: ...


@dataclass(frozen=True, slots=True)
class Target:
    """eos_ids: the tokens that end a text. vocab_limit: ids from here on are padding, and never chosen."""

    model: Model
    tokenizer: Tokenizer | None
    eos_ids: tuple[int, ...]
    vocab_limit: int


def check_loading(
    model: str | Path | Loaded | Model,
    draft: str | Path | Loaded | Drafter | None,
    precision: str,
    threads: int | None,
) -> None:
    """Raises SurefootError for settings of loading where all is loaded already."""
    if isinstance(model, str | Path) or names_a_model(draft):
        return
    for name, value in (("precision", None if precision == "auto" else precision), ("threads", threads)):
        if value is not None:
            raise SurefootError(f"{name}: {value} was given with a loaded model; give it to load_model")


def names_a_model(draft: object) -> bool:
    """Whether a drafter is named that is yet to be loaded."""
    return isinstance(draft, str | Path) and draft not in (NO_DRAFT, *LOOKUPS)


def check_sharing(draft: object, share_drafts: bool) -> None:
    """Raises SurefootError where drafts are to be shared that aren't suffix drafts."""
    if share_drafts and draft != SUFFIX:
        named = draft if isinstance(draft, str | Path) else type(draft).__name__
        raise SurefootError(f"share_drafts: it was given with draft {named}; only suffix shares its drafts")


def open_target(
    model: str | Path | Loaded | Model, tokenizer: Tokenizer | None, precision: str, threads: int | None
) -> Target:
    """Loads a model that is named, and takes one that is there as it is.

    A bare `Model` ends its texts where its `eos_token_ids` say, if it has any, or its tokenizer. Raises
    SurefootError for what is no model.
    """
    if isinstance(model, str | Path):
        model = _load(model, precision, threads)
    if hasattr(model, "forward"):
        bare = cast("Model", model)
    elif not hasattr(model, "model"):
        kind = type(model).__name__
        raise SurefootError(
            f"model: {kind} given; it is a name, a path, what load_model returned, or a Model"
        )
    else:
        bare, tokenizer = model.model, tokenizer or model.tokenizer
    eos_ids = set(getattr(bare, "eos_token_ids", ())) | set(tokenizer.eos_ids if tokenizer else ())
    vocab_limit = min(bare.vocab_size, tokenizer.vocab_size) if tokenizer else bare.vocab_size
    return Target(bare, tokenizer, tuple(sorted(eos_ids)), vocab_limit)


def open_drafter(
    draft: str | Path | Loaded | Drafter | None,
    target: Target,
    precision: str,
    threads: int | None,
    *,
    share_drafts: bool = False,
) -> Drafter | None:
    """Raises SurefootError when the tokenizers of target and draft model differ, for no drafter, and for one
    by name that can't share drafts."""
    check_sharing(draft, share_drafts)
    if draft is None or draft == NO_DRAFT:
        return None
    if draft == NGRAM:
        return NgramDrafter()
    if draft == SUFFIX:
        return SuffixDrafter(pool=POOL if share_drafts else 0)
    if isinstance(draft, str | Path):
        draft = _load(draft, precision, threads)
    if hasattr(draft, "propose"):
        return cast(Drafter, draft)
    if not hasattr(draft, "model"):
        kind = type(draft).__name__
        raise SurefootError(
            f"draft: {kind} given; it is None, ngram, suffix, a smaller model's name or path, "
            "what load_model returned, or a Drafter"
        )
    if target.tokenizer is not None:
        from surefoot.text import same_tokenizer

        same_tokenizer(target.tokenizer, draft.tokenizer)
    return ModelDrafter(draft.model, name=draft.name)


def caches_of(target: Target, drafter: Drafter | None, kv_memory: int | None) -> list[Cache]:
    """The caches that share some memory: the target's, and a draft model's. Raises SurefootError when both
    are the same, so that it can't be shared out."""
    caches = [target.model.cache]
    if isinstance(drafter, ModelDrafter):
        caches.append(drafter.model.cache)
        if caches[0] is caches[1] and kv_memory is not None:
            raise SurefootError(
                f"kv_memory: {kv_memory} was given, but target and draft are one model, which has one cache; "
                "load the draft apart"
            )
    return caches


def _load(name: str | Path, precision: str, threads: int | None) -> Loaded:
    from surefoot.loading import load_model  # torch, and all that reads model files

    return load_model(name, precision=precision, threads=threads)
