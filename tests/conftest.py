"""What holds for all tests."""

import pytest

from hf_exactassist import resolve
from hf_exactassist.models import compiled


@pytest.fixture(autouse=True)
def drafts_always(request, monkeypatch):
    """Five tokens, unless a test says otherwise: between tiny models no draft pays, and none would be tested."""
    if "default_schedule" not in request.keywords:
        monkeypatch.setattr(resolve, "DEFAULT_SCHEDULE", "constant")


@pytest.fixture
def graphs(monkeypatch):
    """What has been compiled, one entry a graph."""
    made = []

    def backend(graph, examples):
        made.append(graph)
        return graph.forward

    monkeypatch.setattr(compiled, "BACKEND", backend)
    return made
