"""Checks for people who write samplers and drafters."""

from surefoot.testing.cases import Case
from surefoot.testing.drafter import assert_drafter
from surefoot.testing.lossless import assert_lossless

__all__ = ["Case", "assert_drafter", "assert_lossless"]
