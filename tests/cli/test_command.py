"""The command as it is installed, and what it costs to ask it for help."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import hf_exactassist


def test_the_installed_script(folders):
    """Text on stdout, the rest on stderr, no terminal codes in a pipe."""
    script = shutil.which("exactassist", path=str(Path(sys.executable).parent))
    assert script, "the command exactassist is not installed beside this Python: pip install -e ."
    done = subprocess.run(
        [script, "generate", *folders.arguments, "-n", "8", "--json"],
        input="the king\n",
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["prompt"] == "the king"
    assert re.fullmatch(r"\d+ tokens in [^\n\x1b]*\n", done.stderr), done.stderr


def test_the_commands_load_no_torch():
    """The folder of commands alone, without the package's own imports."""
    folder = Path(hf_exactassist.__file__).parent
    program = f"""
import sys, types
package = types.ModuleType("hf_exactassist")
package.__path__ = [{str(folder)!r}]
sys.modules["hf_exactassist"] = package
import hf_exactassist.cli
assert not {{"torch", "transformers", "numpy"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)


def test_help_and_version(exactassist):
    done = exactassist("--version")
    assert done.code == 0 and done.out.startswith(f"exactassist {hf_exactassist.__version__} (transformers 5.")
    for arguments in (["--help"], ["demo", "-h"], ["generate", "-h"], ["check", "-h"], ["bench", "-h"]):
        done = exactassist(*arguments)
        assert done.code == 0 and "Usage" in done.out
    assert "Usage" in exactassist().out + exactassist().err
