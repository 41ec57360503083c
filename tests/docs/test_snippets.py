"""The Python snippets of README and docs run as they stand, page by page, on the embedded pair."""

import re
from pathlib import Path

import pytest
import torch

import hf_exactassist.demo


ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md",
    "docs/getting-started.md",
    "docs/processors.md",
    "docs/evaluation.md",
    "docs/benchmarks.md",
    "docs/evaluation-at-scale.md",
]
# compiles for half a minute
PAGES.append(pytest.param("docs/compile.md", marks=pytest.mark.slow))


@pytest.mark.parametrize("page", PAGES)
def test_snippets_run(page, monkeypatch, capsys):
    if not hf_exactassist.demo.target_path().is_dir():
        pytest.fail("the embedded pair is missing")
    monkeypatch.chdir(ROOT)
    torch.set_num_threads(1)
    snippets = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)
    assert snippets
    names = {}
    for number, snippet in enumerate(snippets, 1):
        exec(compile(snippet, f"{page}, snippet {number}", "exec"), names)
