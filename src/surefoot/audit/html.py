"""A report as one page that needs nothing else: no request, no script, light and dark, fit to be printed."""

from __future__ import annotations

import math
from importlib.metadata import version

from jinja2 import Environment, PackageLoader, StrictUndefined

from surefoot.audit import words
from surefoot.audit.plots import plot
from surefoot.audit.report import Report


def page(report: Report) -> str:
    """The whole page. Prompts and answers may hold anything: all text is escaped."""
    pages = Environment(
        loader=PackageLoader("surefoot.audit", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    pages.filters |= {"visible": words.visible, "cell": words.cell, "plot": plot}
    return pages.get_template("page.html").render(
        report=report,
        names=words.NAMES,
        marks=words.MARKS,
        conclusion=words.conclusion(report),
        effort=words.effort(report),
        is_numeric=words.is_numeric,
        shares=words.shares,
        reached=words.reached,
        is_beyond=math.isinf,
        version=version("surefoot"),
    )
