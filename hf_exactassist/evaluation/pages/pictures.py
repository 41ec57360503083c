"""Charts as SVG that stands inside a page and takes the page's colours. Needs matplotlib."""

from __future__ import annotations

import io
import re
import warnings
from typing import Any
from xml.etree import ElementTree

from ...errors import InvalidArgument
from .charts import Bars, Chart, Dots, Lines
from .words import distinct, printable, shortened


# In units that are pixels on a phone 360 wide: nothing is written smaller than TEXT.
WIDTH, TEXT = 320, 12
LONGEST = 40
# Matplotlib takes no CSS variables: these colours stand for them while it draws.
INK, FAINT, PAPER = "#010101", "#010102", "#010103"
_SERIES = [f"#01020{place}" for place in range(6)]
_VARIABLES = {
    INK: "var(--ink, #1b1f24)",
    FAINT: "var(--faint, #8a919a)",
    PAPER: "var(--paper, #ffffff)",
    **{
        colour: f"var(--series-{place}, {usual})"
        for place, (colour, usual) in enumerate(
            zip(_SERIES, ("#0067a5", "#c04f00", "#00795a", "#a03c78", "#8c6d00", "#555c66"), strict=True)
        )
    },
}
# of so many different numbers that the first 84 ways all look different
_MARKS = ("o", "s", "^", "D", "v", "X", "P")
_DASHES = ("-", "--", "-.", ":")
_HATCHES = ("", "///", "xx", "--")
_DIGITS = re.compile(r"\d+\.\d{3,}")
_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"


def picture(chart: Chart, name: str) -> str:
    """A chart as an `svg` element with a text alternative.

    Args:
        chart (`Chart`): what to draw.
        name (`str`): begins all its ids; must differ between the pictures of a page.

    Raises:
        InvalidArgument: matplotlib is missing.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError as error:
        raise InvalidArgument("Pictures need matplotlib: pip install 'hf-exactassist[eval]'.") from error

    settings: dict[Any, Any] = {
        "svg.fonttype": "none",  # text stays text
        "svg.hashsalt": name,  # the same report makes the same file
        "text.parse_math": False,
        "font.size": TEXT,
        "axes.titlesize": TEXT,
        "legend.fontsize": TEXT,
        "axes.unicode_minus": False,
        "hatch.linewidth": 1.5,
        **dict.fromkeys(("text.color", "xtick.labelcolor", "ytick.labelcolor", "axes.titlecolor"), INK),
        **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color", "grid.color"), FAINT),
    }
    drawn = io.StringIO()
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        # the reader's fonts count, not matplotlib's
        warnings.filterwarnings("ignore", message="Glyph .* missing", category=UserWarning)
        # the reader's letters may be a little wider too
        figure = Figure(layout=ConstrainedLayoutEngine(w_pad=6 / 72), facecolor="none")
        if isinstance(chart, Lines):
            _lines(figure, chart)
        elif isinstance(chart, Bars):
            _bars(figure, chart)
        else:
            _dots(figure, chart)
        figure.savefig(drawn, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return _for_page(drawn.getvalue(), name, printable(chart.title), printable(chart.words()))


def _lines(figure: Any, chart: Lines) -> None:
    from matplotlib.ticker import MaxNLocator

    named = len(chart.series) + (chart.level is not None)
    axes = _axes(figure, 200, named)
    if chart.base is not None:
        axes.axhline(chart.base, color=FAINT, linewidth=1)
    for one, label in zip(chart.series, distinct([one.label for one in chart.series], LONGEST), strict=True):
        places, values = zip(*one.points, strict=True)
        look = _look(one.style, joined=one.joined, marked=one.marked)
        if any(one.spans):
            spans = [span or (value, value) for span, value in zip(one.spans, values, strict=True)]
            # an interval may lie to one side of its value
            below = [max(0.0, value - low) for value, (low, _) in zip(values, spans, strict=True)]
            above = [max(0.0, high - value) for value, (_, high) in zip(values, spans, strict=True)]
            axes.errorbar(places, values, yerr=[below, above], label=label, capsize=4, **look)
        else:
            axes.plot(places, values, label=label, **look)
    if chart.level is not None:
        axes.axhline(chart.level[1], label=shortened(chart.level[0], LONGEST), color=INK, linestyle=(0, (6, 2, 1, 2)))
    axes.set_xlabel(chart.across, color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    axes.grid(axis="y", linewidth=0.5)
    if chart.shares:
        axes.set_ylim(0, 1.04)
    else:
        axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
    _legend(figure, axes)


def _bars(figure: Any, chart: Bars) -> None:
    axes = _axes(figure, 42 * len(chart.labels) + 20, 1)
    places = range(len(chart.labels))
    left = [0.0] * len(chart.labels)
    for number, (name, shares) in enumerate(chart.parts.items()):
        look = {"color": _SERIES[number], "hatch": _HATCHES[number], "edgecolor": PAPER, "linewidth": 1}
        axes.barh(places, shares, left=left, height=0.45, label=name, **look)
        left = [before + share for before, share in zip(left, shares, strict=True)]
    _rows(axes, chart.labels, 0.3)
    axes.set_xlim(0, 1)
    _in_percent(axes.xaxis)
    figure.legend(loc="outside lower left", ncols=4, frameon=False, handlelength=1.4, columnspacing=1, borderpad=0)


def _dots(figure: Any, chart: Dots) -> None:
    ways = len(chart.series)
    axes = _axes(figure, (26 + 6 * ways) * len(chart.kinds) + 20, ways)
    if chart.base is not None:
        axes.axvline(chart.base, color=FAINT, linewidth=1)
    for number, one in enumerate(chart.series):
        places, values = zip(*one.points, strict=True)
        beside = 0.5 * (number + 0.5) / ways - 0.25
        label = distinct([one.label for one in chart.series], LONGEST)[number]
        look = _look(one.style, joined=False, marked=True)
        axes.plot(values, [place + beside for place in places], label=label, **look)
    _rows(axes, chart.kinds, 0.32)
    if chart.shares:
        axes.set_xlim(0, 1.02)
        _in_percent(axes.xaxis)
    else:
        axes.set_xlim(left=0)
    axes.grid(axis="x", linewidth=0.5)
    _legend(figure, axes)


def _axes(figure: Any, height: float, named: int) -> Any:
    """Axes of this height above room for so many names."""
    figure.set_size_inches(WIDTH / 72, (height + 18 * named) / 72)
    axes = figure.subplots()
    axes.patch.set_visible(False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    return axes


def _rows(axes: Any, labels: tuple[str, ...], above: float) -> None:
    """Names over rows, so that names take no room beside them."""
    axes.set_ylim(len(labels) - 0.6, -0.75)
    axes.set_yticks([])
    for place, label in enumerate(distinct(labels, LONGEST)):
        axes.text(0.015, place - above, label, transform=axes.get_yaxis_transform(), va="bottom")


def _legend(figure: Any, axes: Any) -> None:
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside lower left", frameon=False, handlelength=2.6, labelspacing=0.3, borderpad=0)


def _in_percent(axis: Any) -> None:
    from matplotlib.ticker import PercentFormatter

    axis.set_major_formatter(PercentFormatter(1, decimals=0))


def _look(style: int, joined: bool, marked: bool) -> dict[str, Any]:
    return {
        "color": _SERIES[style % len(_SERIES)],
        "marker": _MARKS[style % len(_MARKS)] if marked else "",
        "linestyle": _DASHES[style % len(_DASHES)] if joined else "",
        "linewidth": 1.6,
        "markersize": 6,
    }


def _for_page(drawn: str, name: str, title: str, words: str) -> str:
    """Without what is meant for a file of its own, with ids that are the picture's and colours that are the page's."""
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _XLINK)
    root = ElementTree.fromstring(drawn)
    size = {"viewBox": root.attrib["viewBox"]}
    # its style sheet would hold for the whole page
    root.attrib = {**size, "role": "img", "stroke-linejoin": "round", "aria-labelledby": f"{name}-title {name}-words"}
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"):
                parent.remove(child)
    used = drawn.partition("<g")[2]
    for element in root.iter():
        _rename(element, name, used)
        element.tail = None
        if element.tag != f"{{{_SVG}}}text":
            element.text = None
    for place, (tag, text) in enumerate((("title", title), ("desc", words))):
        child = ElementTree.Element(f"{{{_SVG}}}{tag}", id=f"{name}-{'title' if tag == 'title' else 'words'}")
        child.text = text
        root.insert(place, child)
    return ElementTree.tostring(root, encoding="unicode")


def _rename(element: ElementTree.Element, name: str, used: str) -> None:
    """Ids that something points to begin with the picture's name, others go; fonts are the page's."""
    own = element.attrib.pop("id", None)
    if own is not None and f"#{own}" in used:
        element.set("id", f"{name}-{own}")
    for key, value in element.attrib.items():
        if key == f"{{{_XLINK}}}href":
            value = f"#{name}-{value[1:]}"
        elif "url(#" in value:
            value = value.replace("url(#", f"url(#{name}-")
        if key == "style" and element.tag == f"{{{_SVG}}}text":
            value = "; ".join(part for part in value.split("; ") if not part.startswith("font-family"))
        value = _DIGITS.sub(lambda found: f"{float(found[0]):.2f}", " ".join(value.split()))
        if key in ("style", "fill", "stroke"):
            for colour, variable in _VARIABLES.items():
                value = value.replace(colour, variable)
        element.set(key, value)
