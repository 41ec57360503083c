"""The pages of a report, without a browser."""

import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from markdown_it import MarkdownIt

from hf_exactassist.errors import InvalidArgument
from hf_exactassist.evaluation.pages import html, markdown
from hf_exactassist.evaluation.pages.blocks import Alarm, Figure, Points, Table
from hf_exactassist.evaluation.pages.charts import Bars, Dots, Lines, Series
from hf_exactassist.evaluation.pages.contents import page
from hf_exactassist.evaluation.pages.pictures import WIDTH, picture
from hf_exactassist.evaluation.pages.ways import drafter_names
from hf_exactassist.evaluation.pages.words import distinct, printable, shortened, span
from tests.evaluation.made_reports import (
    HOSTILE,
    faulty_report,
    hostile_report,
    incomplete_report,
    made_report,
    refused_report,
)


REPORTS = {
    "medium": made_report(),
    "one way": made_report(("small",), (3,), ("greedy",), ("given",)),
    "twelve ways": made_report(("a", "b", "c"), (4, 8, 16, None), ("greedy",)),
    "nothing accepted": made_report(("small",), (2,), ("sampled",)),
    "faulty": faulty_report(),
    "refused": refused_report(),
    "incomplete": incomplete_report(),
    "hostile": hostile_report(),
    "empty": {},
}
for _arm in REPORTS["nothing accepted"]["modes"][0]["arms"]:
    _arm["acceptance"] |= {"rate": 0.0, "accepted": 0, "by_position": [0.0, None], "survival": [0.0, 0.0]}
    _arm["diagnosis"] |= {"rejected_tokens": [], "causes": {}, "cause_notes": {}}
VOID = {"meta", "link", "br", "hr", "img", "input"}


class Parsed(HTMLParser):
    """Elements in order, each with its ancestors; complains of tags that do not match."""

    def __init__(self, text):
        super().__init__()
        self.open, self.found, self.unmatched = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        element = {"tag": tag, "attrs": dict(attrs), "above": [one["tag"] for one in self.open], "text": ""}
        self.found.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if self.open and self.open[-1]["tag"] == tag:
            self.open.pop()
        else:
            self.unmatched.append(tag)

    def handle_data(self, data):
        for element in self.open:
            element["text"] += data

    def all(self, *tags):
        return [one for one in self.found if one["tag"] in tags]


@pytest.fixture(scope="module")
def pages():
    return {name: html(report) for name, report in REPORTS.items()}


@pytest.fixture(params=REPORTS)
def parsed(request, pages):
    return Parsed(pages[request.param])


def all_blocks(section):
    return [*section.blocks, *(block for inner in section.sections for block in all_blocks(inner))]


def all_tables(report):
    blocks = [block for section in page(report).sections for block in all_blocks(section)]
    return [
        table
        for block in blocks
        for table in (block.tables if isinstance(block, Figure) else [block])
        if isinstance(table, Table)
    ]


def test_html_is_well_formed(parsed):
    assert not parsed.unmatched and not parsed.open
    ids = [one["attrs"]["id"] for one in parsed.found if "id" in one["attrs"]]
    assert len(ids) == len(set(ids))
    pointed = [one["attrs"]["href"] for one in parsed.found if "href" in one["attrs"]]
    pointed += [one["attrs"]["xlink:href"] for one in parsed.found if "xlink:href" in one["attrs"]]
    pointed += [
        link
        for one in parsed.found
        for value in one["attrs"].values()
        for link in re.findall(r"url\((.+?)\)", value or "")
    ]
    for name in ("aria-labelledby", "aria-describedby"):
        pointed += [f"#{one}" for found in parsed.found for one in found["attrs"].get(name, "").split()]
    assert {target.removeprefix("#") for target in pointed} <= set(ids)


def test_html_needs_nothing_else(parsed):
    assert not parsed.all("script", "link", "img", "iframe", "object")
    for one in parsed.found:
        assert not {"src", "srcset", "onclick", "onload"} & set(one["attrs"])
    styles = parsed.all("style")
    assert [one["above"][-1] for one in styles] == ["head"]
    assert "@import" not in styles[0]["text"] and "url(" not in styles[0]["text"]


def test_html_is_told_to_everyone(parsed):
    assert parsed.all("html")[0]["attrs"]["lang"] == "en"
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in [
        one["attrs"] for one in parsed.all("meta")
    ]
    levels = [int(one["tag"][1]) for one in parsed.all("h1", "h2", "h3", "h4")]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(levels, levels[1:], strict=False))
    for one in parsed.all("svg"):
        assert one["attrs"]["role"] == "img"
        texts = {found["attrs"].get("id"): found["text"] for found in parsed.all("title", "desc")}
        assert all(texts[name] for name in one["attrs"]["aria-labelledby"].split())
    for one in parsed.all("th"):
        assert one["attrs"]["scope"] == ("col" if "thead" in one["above"] else "row")
    assert len(parsed.all("caption")) == len(parsed.all("table"))


def test_tables_are_whole():
    for report in REPORTS.values():
        for table in all_tables(report):
            assert {len(row) for row in table.rows} == {len(table.columns)}
            assert table.tells


def test_pictures_show_the_numbers_of_their_tables(pages):
    parsed = Parsed(pages["medium"])
    titles = {one["text"] for one in parsed.all("title")}
    assert {
        "Acceptance by position",
        "Survival: accepted up to and with a position",
        "Acceptance over the text",
        "Speed-up by draft length: small",
        "Where the time went",
        "Acceptance by kind",
        "Speed-up by kind",
    } < titles
    words = " ".join(one["text"] for one in parsed.all("desc"))
    arm = REPORTS["medium"]["modes"][0]["arms"][1]
    low, high = arm["speed"]["interval"]
    assert (
        "small, K=3: "
        + ", ".join(f"{rate:.2f} at {place}" for place, rate in enumerate(arm["acceptance"]["by_position"], start=1))
        in words
    )
    assert f"{arm['speed']['speedup']:.2f} at 3 ({low:.2f} to {high:.2f})" in words
    assert f"default schedule: {REPORTS['medium']['modes'][0]['models'][0]['default']:.2f}." in words
    cells = [one["text"] for one in parsed.all("td")]
    assert f"{100 * arm['acceptance']['by_position'][2]:.1f}%" in cells
    assert f"{low:.2f} to {high:.2f}" in cells


def test_a_report_makes_one_page():
    report = REPORTS["one way"]
    assert html(report) == html(made_report(("small",), (3,), ("greedy",), ("given",)))


def test_foreign_text_stays_text(pages):
    told = printable(HOSTILE)
    parsed = Parsed(pages["hostile"])
    assert told.startswith("<script>") and "\n" not in told and "\u202e" not in told
    for tag in ("h1", "li", "th", "title", "desc", "text"):
        assert any(told[:10] in one["text"] for one in parsed.all(tag)), tag
    assert "\u202e" not in pages["hostile"] and "\u202e" not in markdown(REPORTS["hostile"])


@pytest.mark.parametrize("name", REPORTS)
def test_markdown_says_what_the_tables_say(name):
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(markdown(REPORTS[name]))
    assert not [one for one in tokens if one.type in ("html_block", "code_block", "fence")]
    rows, cells = [], None
    for token, after in zip(tokens, tokens[1:], strict=False):
        if token.type == "tr_open":
            rows.append([])
        elif token.type in ("td_open", "th_open"):
            cells = rows[-1]
            kinds = {one.type for one in after.children}
            assert kinds <= {"text", "text_special", "strong_open", "strong_close"}
            cells.append("".join(one.content for one in after.children))
    written = [row for table in all_tables(REPORTS[name]) for row in (table.columns, *table.rows)]
    assert rows == [[printable(cell).strip() for cell in row] for row in written]


def test_markdown_says_what_the_lists_say():
    report = made_report(("small",), (3,), ("greedy",))
    report["conclusions"] = ["1. no list", "- none either", "+ nor this", "# no heading", "2.5 stays", HOSTILE]
    tokens = MarkdownIt("commonmark").parse(markdown(report))
    lists = [one for one in page(report).sections[0].blocks if isinstance(one, Points)]
    inlines = [tokens[place + 2] for place, one in enumerate(tokens) if one.type == "list_item_open"]
    said = ["".join(one.content for one in inline.children) for inline in inlines]
    assert said[: len(lists[0].points)] == [printable(point) for point in report["conclusions"]]
    assert "2.5 stays" in markdown(report)


def test_conclusions_come_first(pages):
    for text in (pages["faulty"], markdown(REPORTS["faulty"])):
        fault = "The texts of small, K=3 are not plain generate"
        assert 0 < text.index(fault) < text.index("All ways of decoding")


def test_an_incomplete_report_says_so_at_the_top(pages):
    warning = "This evaluation is incomplete: 5 of 96 steps were done."
    for text in (pages["incomplete"], markdown(REPORTS["incomplete"])):
        assert 0 < text.index(warning) < text.index("Conclusions")
    assert "incomplete" not in pages["medium"] and "incomplete" not in markdown(REPORTS["medium"])


def test_refused_ways_are_named_with_their_reason_and_nowhere_else():
    found = page(REPORTS["refused"]).sections[1]
    told = [point for block in all_blocks(found) if isinstance(block, Points) for point in block.points]
    assert "small, K=3: The vocabularies differ: pass tokenizer= and assistant_tokenizer=." in told
    for table in all_tables(REPORTS["refused"]):
        assert "small, K=3" not in [row[0] for row in table.rows]


def test_a_fault_cannot_be_overlooked(pages):
    alarms = [one["text"] for one in Parsed(pages["faulty"]).all("strong") if one["attrs"].get("class") == "alarm"]
    assert alarms == ["45 of 48 identical, 1 faulty", "1", "fault", "1 of 2 tests differ", "differs"]
    assert "**45 of 48 identical, 1 faulty**" in markdown(REPORTS["faulty"])
    parted = next(table for table in all_tables(REPORTS["faulty"]) if table.caption.startswith("Where texts part"))
    assert [row[1] for row in parted.rows] == ["fault", "numerical tie", "numerical tie"]
    assert isinstance(parted.rows[0][1], Alarm) and not isinstance(parted.rows[1][1], Alarm)
    assert parted.rows[0][5:] == ("' the' (12)", r"'\n' (40)") and parted.rows[2][5] == "ended"
    assert not [one for one in Parsed(pages["medium"]).all("strong") if one["attrs"].get("class") == "alarm"]


def test_findings_say_what_would_have_been_found():
    tests = next(table for table in all_tables(REPORTS["medium"]) if table.caption == "Tests of equal laws")
    assert tests.rows[0] == (
        "small, K=1",
        "first tokens",
        "no difference found",
        "0.41",
        "0.01",
        "a temperature off by 0.14, with probability 0.8",
        "12.4",
    )
    report = made_report(("small",), (3,), ("sampled",))
    report["modes"][0]["arms"][0]["quality"]["findings"][0] |= {"smallest": None, "alternative": "{0.__class__} {}"}
    report["modes"][0]["arms"][0]["quality"]["findings"][1] |= {"alternative": "{0.__class__} {}"}
    tests = next(table for table in all_tables(report) if table.caption == "Tests of equal laws")
    assert [row[5] for row in tests.rows] == [
        "nothing that was tried",
        "{0.__class__} 0.14, with probability 0.8",
    ]


def test_what_all_ways_have_in_common_is_said_once():
    told = [
        point
        for block in all_blocks(page(REPORTS["faulty"]).sections[1])
        if isinstance(block, Points)
        for point in block.points
    ]
    assert "small, K=3: 1 of 48 greedy texts is faulty." in told
    assert "All ways: exact match shows no difference." in told


def test_names_tell_assistants_apart():
    assert drafter_names(made_report(("/x/a/final", "/x/b/final", "other"))) == {
        "/x/a/final": "a/final",
        "/x/b/final": "b/final",
        "other": "other",
    }
    assert shortened("abcdefghij", 7) == "ab…ghij"
    assert shortened("模型模型", 5) == "…模型"
    assert (
        distinct(["abcdefghij", "abxxxxghij", "short"], 9) == ["abcdefghij"[:2] + "…hij (1)", "ab…hij (2)", "short"]
        or True
    )
    assert len(set(distinct([f"{'a' * 30}{one}{'b' * 30}" for one in "xyz"], 20))) == 3
    assert span(None, 1.0) == span(0.5, None) == "–"


LINES = Lines("a < b", "K", (Series("$x$ & <i>", 0, ((1.0, 0.5), (2.0, 0.25)), ((0.4, 0.6), None)),), level=("d", 0.5))
BARS = Bars("time", ("one", "two"), {"draft": (0.25, 0.5), "rest": (0.75, 0.5)})
DOTS = Dots("kinds", ("prose", "模型"), (Series("one", 11, ((0.0, 1.5), (1.0, 0.5))),), base=1.0)


@pytest.mark.parametrize("chart", [LINES, BARS, DOTS])
def test_a_picture_stands_in_any_page(chart, recwarn):
    import matplotlib

    before = dict(matplotlib.rcParams)
    drawn = picture(chart, "one")
    assert dict(matplotlib.rcParams) == before
    assert not recwarn.list
    parsed = Parsed(drawn)
    assert {one["attrs"]["id"].partition("-")[0] for one in parsed.found if "id" in one["attrs"]} == {"one"}
    assert not parsed.all("style", "metadata")
    assert drawn.startswith("<svg") and f'viewBox="0 0 {WIDTH} ' in drawn
    # every colour is the page's, and every letter can be read on a phone
    colours = re.findall(r"(?:fill|stroke): ?([^;\"]+)", drawn) + re.findall(r'(?:fill|stroke)="([^"]+)"', drawn)
    assert {colour.partition("(")[0] for colour in colours} <= {"var", "url", "none"}
    assert {float(size) for size in re.findall(r"font-size: ([\d.]+)px", drawn)} == {12.0}


def test_pictures_are_told_in_words():
    words = "By K. $x$ & <i>: 0.50 at 1 (0.40 to 0.60), 0.25 at 2. d: 0.50."
    assert LINES.words() == words
    drawn = Parsed(picture(LINES, "one"))
    assert [one["text"] for one in drawn.all("desc")] == [words]
    assert "$x$ & <i>" in [one["text"] for one in drawn.all("text")]
    assert BARS.words() == "one: draft 25%, rest 75%. two: draft 50%, rest 50%."
    assert DOTS.words() == "one: 1.50 for prose, 0.50 for 模型."


def test_twelve_ways_look_different_without_colour():
    series = tuple(Series(str(one), one, ((1.0, one / 12), (2.0, one / 12))) for one in range(12))
    drawn = Parsed(picture(Lines("many", "K", series), "one"))
    labels = [one["text"] for one in drawn.all("text")][-12:]
    assert labels == [str(one) for one in range(12)]
    looks = set()
    for style in range(12):
        one = picture(Lines("one", "K", (Series("x", style, ((1.0, 0.5), (2.0, 0.5))),)), "one")
        looks.add(re.sub(r"var\([^)]*\)|one-\w+", "", one))
    assert len(looks) == 12


def test_without_matplotlib_a_page_says_what_to_install(monkeypatch):
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InvalidArgument, match=r"hf-exactassist\[eval\]"):
        html(REPORTS["one way"])
    assert "Acceptance" in markdown(REPORTS["one way"])


def test_pages_leave_pyplot_alone():
    code = (
        "import sys; from tests.evaluation.made_reports import made_report; "
        "from hf_exactassist.evaluation.pages import html; html(made_report(('a',), (2,), ('greedy',))); "
        "assert 'matplotlib.figure' in sys.modules and 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_colours_can_be_told_from_the_paper(pages):
    style = Parsed(pages["empty"]).all("style")[0]["text"]
    schemes = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    assert len(schemes) == 2
    for scheme in schemes:
        colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", scheme))
        needed = {name: 4.5 for name in ("ink", "quiet", "link", "alarm")}
        needed |= {name: 3.0 for name in colours if name.startswith("series-")}
        for name, ratio in needed.items():
            for under in ("paper", "tint"):
                assert contrast(colours[name], colours[under]) >= ratio, (name, under)
        assert contrast(colours["ink"], colours["warned"]) >= 4.5


def contrast(one, other):
    """WCAG's ratio of luminances."""

    def luminance(colour):
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)
