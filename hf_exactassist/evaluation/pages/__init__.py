"""The report of an evaluation, to be read: as Markdown and as one HTML file.

Both say the same, in the same order: `contents` decides what, from a report as `report.json` holds it. Any part of a
report may be missing, since evaluations can be interrupted and ways of decoding refused.
"""

from .html import html
from .markdown import markdown


__all__ = ["html", "markdown"]
