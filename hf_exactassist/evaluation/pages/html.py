"""The report as one HTML file that needs nothing else."""

from __future__ import annotations

from itertools import count
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from .blocks import Alarm
from .charts import Chart
from .contents import page
from .pictures import picture
from .words import printable


def html(report: dict[str, Any]) -> str:
    """A report as a page with pictures: no network, no scripts, for wide and narrow, light and dark screens and paper.

    Args:
        report (`dict[str, Any]`): what `report.json` holds; any part may be missing.

    Raises:
        InvalidArgument: matplotlib is missing.
    """
    numbers = count(1)

    def drawn(chart: Chart) -> Markup:
        # the one thing that is not escaped: it has been made by an XML writer
        return Markup(picture(chart, f"picture-{next(numbers)}"))

    def shown(value: Any) -> Any:
        return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = Environment(
        loader=PackageLoader("hf_exactassist.evaluation", "pages"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["drawn"] = drawn
    environment.tests["alarm"] = lambda cell: isinstance(cell, Alarm)
    environment.filters["kind"] = lambda block: type(block).__name__
    return environment.get_template("page.html.jinja").render(page=page(report))
