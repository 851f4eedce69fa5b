"""What is made once for all processes that run tests at the same time."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from surefoot.models.catalog import home


@contextmanager
def alone() -> Iterator[None]:
    """One process at a time: the next finds made what it would have made again, or have got in the way of."""
    home().mkdir(parents=True, exist_ok=True)
    with (home() / ".tests").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
