"""The pages of a report in a browser, where there is one."""

import json
import re
import shutil
import subprocess
from html import escape, unescape

import pytest

from hf_exactassist.evaluation.pages import html
from tests.evaluation.made_reports import hostile_report, made_report


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")]
# the page has no scripts of its own; a frame can be narrower than windows can
FRAME = '<!doctype html><iframe style="width: {}px; height: 900px; border: 0" srcdoc="{}"></iframe>'
MEASURE = """<script>
const all = (what) => [...document.querySelectorAll(what)];
parent.document.title = JSON.stringify({
  width: innerWidth,
  page: document.documentElement.scrollWidth,
  scrolling: all(".wide").filter((one) => one.scrollWidth > one.clientWidth).length,
  sticky: all("tbody th").every((one) => getComputedStyle(one).position === "sticky"),
  pictures: all("figure svg").map((one) => one.getBoundingClientRect().width),
  text: all("figure svg text").map((one) => {
    const own = one.getBoundingClientRect(), picture = one.closest("svg").getBoundingClientRect();
    return [Math.max(picture.left - own.left, own.right - picture.right), one.textContent];
  }),
  paper: getComputedStyle(document.body).backgroundColor,
});
</script></body>"""


def measured(folder, report, width, dark):
    file = folder / "report.html"
    page = html(report).replace("</body>", MEASURE)
    file.write_text(FRAME.format(width, escape(page)), encoding="utf-8")
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"]
    command += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    command += [f"--user-data-dir={folder / 'profile'}", "--window-size=1400,1000"]
    command += [f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--dump-dom", file.as_uri()]
    dumped = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    found = re.search(r"<title>(.*?)</title>", dumped)
    return json.loads(unescape(found[1]))


@pytest.mark.parametrize("width", [360, 390, 1280])
@pytest.mark.parametrize("make", [made_report, hostile_report])
def test_only_tables_scroll_sideways(tmp_path, make, width):
    found = measured(tmp_path, make(), width, dark=False)
    assert found["width"] == width
    assert found["page"] <= width
    assert found["sticky"]
    assert found["scrolling"] > 0 or width > 1000
    assert min(found["pictures"]) >= 320  # text of 12 pixels is 12 pixels at least
    assert [text for over, text in found["text"] if over > 0] == []  # and nothing is cut off


def test_pages_follow_the_reader_into_the_dark(tmp_path):
    report = made_report(("small",), (3,), ("greedy",))
    papers = [measured(tmp_path, report, 390, dark)["paper"] for dark in (False, True)]
    assert papers == ["rgb(255, 255, 255)", "rgb(20, 24, 29)"]
