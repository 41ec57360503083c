"""What all modules for `evaluate` share: the form of a Space, loading by path, examples that run."""

import doctest
import os
import re
import runpy
import shutil
import subprocess
import sys

import evaluate
import pytest
import yaml

from tests.recipes.conftest import MODULES, ROOT


every_module = pytest.mark.parametrize("name", MODULES)


@every_module
def test_has_the_form_of_a_space(name):
    folder = ROOT / "recipes" / "evaluate" / name
    assert {path.name for path in folder.iterdir() if path.is_file()} == {
        f"{name}.py",
        "README.md",
        "app.py",
        "requirements.txt",
    }
    header, card = (folder / "README.md").read_text(encoding="utf-8").removeprefix("---\n").split("\n---\n", 1)
    told = yaml.safe_load(header)
    assert {"title", "emoji", "sdk", "sdk_version", "app_file", "description"} <= set(told)
    assert told["tags"] == ["evaluate", MODULES[name]]
    for section in ("Description", "How to Use", "Inputs", "Output Values", "Examples", "Limitations", "Citation"):
        assert re.search(rf"^#+ .*{section}", card, re.MULTILINE), section
    assert "hf-exactassist" in (folder / "requirements.txt").read_text()


@every_module
def test_card_and_module_describe_the_same(name, load):
    module = load(name)
    header = (ROOT / "recipes" / "evaluate" / name / "README.md").read_text(encoding="utf-8").split("\n---\n")[0]
    assert yaml.safe_load(header.removeprefix("---\n"))["description"] == " ".join(module.description.split())


@every_module
def test_documented_examples_run(name, load):
    module = load(name)
    results = doctest.testmod(sys.modules[type(module).__module__], raise_on_error=True)
    assert results.attempted > 3 and not results.failed


@every_module
def test_examples_of_the_card_run(name, load, capsys):
    card = (ROOT / "recipes" / "evaluate" / name / "README.md").read_text(encoding="utf-8")
    snippets = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
    assert len(snippets) > 1
    names = {}
    for number, snippet in enumerate(snippets, 1):
        exec(compile(snippet, f"{name}, snippet {number}", "exec"), names)


@every_module
def test_works_from_a_copy_elsewhere(name, load, tmp_path, monkeypatch):
    shutil.copytree(ROOT / "recipes" / "evaluate" / name, tmp_path / "space" / name)
    code = (
        f"import evaluate; module = evaluate.load('space/{name}', module_type='{MODULES[name]}'); "
        "print(type(module).__module__, module.module_type)"
    )
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split()[1] == MODULES[name]


@every_module
def test_the_app_shows_the_module(name, monkeypatch, tmp_path):
    shown = []
    monkeypatch.setattr(evaluate.utils, "launch_gradio_widget", shown.append)
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "recipes" / "evaluate" / name / "app.py"))
    assert [type(module).__name__ for module in shown] == [name.title().replace("_", "")]
