"""Modules of `evaluate`, loaded by path as anyone would, with caches of their own."""

from pathlib import Path

import evaluate
import pytest


ROOT = Path(__file__).parents[2]
MODULES = {"acceptance_length": "measurement", "assisted_speedup": "measurement", "exactness": "comparison"}


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Loads a module from the repository, or from another folder that holds it."""
    monkeypatch.chdir(ROOT)

    def by_path(name, *configuration, folder="recipes/evaluate"):
        return evaluate.load(
            f"{folder}/{name}", *configuration, module_type=MODULES[name], cache_dir=str(tmp_path / "cache")
        )

    return by_path
