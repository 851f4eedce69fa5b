"""Threads of the kernels: they end, take turns, and survive a fork."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from surefoot.native.library import Library
from surefoot.native.model import Linear
from surefoot.types import SurefootError
from tests.native import COMPILER, libraries
from tests.test_native_library import drawn, int8

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")


@pytest.fixture(scope="module")
def best() -> Library:
    return libraries()[0]


def test_a_pool_that_is_dropped_ends_its_threads(best: Library) -> None:
    tasks = Path("/proc/self/task")
    if not tasks.is_dir():
        pytest.skip("the system doesn't list threads")
    before = len(list(tasks.iterdir()))
    pool = best.pool(4)
    assert len(list(tasks.iterdir())) == before + 3
    del pool
    gc.collect()
    assert len(list(tasks.iterdir())) == before


def test_models_share_their_threads(best: Library) -> None:
    pool = best.pool(3)
    assert best.pool(3) is pool
    assert best.pool(2) is not pool


def test_threads_that_cannot_be_had_are_a_mistake(best: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(best.functions, "sf_pool_new", lambda threads: None)
    with pytest.raises(SurefootError, match=r"^threads: 900 can't be had"):
        best.pool(900)


def test_callers_take_turns_with_a_pool(best: Library) -> None:
    pool, linear, x = best.pool(2), Linear((int8(best, 320, 64),)), drawn(3, 64)
    expected = best.linear_forward(pool, linear, x)
    results = []
    other = threading.Thread(target=lambda: results.append(best.linear_forward(pool, linear, x)))
    with pool.held():
        other.start()
        other.join(0.2)  # far more than it would take
        assert results == []
    other.join()
    assert np.array_equal(results[0], expected)


FORK = """
import os, sys, warnings
import numpy as np
from tests.test_native_library import drawn, int8, libraries, Linear
best = libraries()[0]
pool, linear, x = best.pool(2), Linear((int8(best, 320, 64),)), drawn(3, 64)
expected = best.linear_forward(pool, linear, x)
warnings.simplefilter("ignore")  # of Python 3.12, about forks of programs with threads
child = os.fork()
equal = np.array_equal(best.linear_forward(pool, linear, x), expected)
if child:
    equal = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 and equal
sys.exit(not equal)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_fork_has_threads_of_its_own(best: Library) -> None:
    root = Path(__file__).parent.parent
    assert subprocess.run([sys.executable, "-c", FORK], cwd=root, timeout=60, check=False).returncode == 0
