"""What `import surefoot` offers, and what it costs."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields

import pytest

import surefoot


def test_the_public_names() -> None:
    assert dir(surefoot) == surefoot.__all__ == sorted(surefoot.__all__)
    for name in surefoot.__all__:
        assert getattr(surefoot, name).__name__ == name


def test_importing_surefoot_loads_neither_torch_nor_numpy() -> None:
    code = "import sys, surefoot; assert not {'torch', 'numpy'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_two_functions_can_be_decoded_without_torch() -> None:
    code = "import sys, surefoot; surefoot.speculative_decode; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


PURE = ("noise", "sampling", "verify", "tree", "exact", "oracle", "models.toy", "lookahead", "scheduler")


@pytest.mark.parametrize("module", PURE)
def test_pure_parts_need_no_torch(module: str) -> None:
    code = f"import sys, surefoot.{module}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        surefoot.nonsense  # noqa: B018


def test_what_results_are_made_of_is_public() -> None:
    made_of = [surefoot.Choice, surefoot.Chunk, surefoot.Result]
    named = {
        name
        for kind in made_of
        for field in fields(kind)
        for name in re.findall("[A-Z]\\w+", str(field.type))
    }
    assert {"Stats", "TopLogprobs", "Usage"} <= named
    assert named - {"Exception", "FinishReason", "None", "PromptLogprobs"} <= set(surefoot.__all__)
