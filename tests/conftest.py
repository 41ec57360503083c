"""What holds for all tests."""

import pytest

from hf_exactassist import resolve


@pytest.fixture(autouse=True)
def drafts_always(request, monkeypatch):
    """Five tokens, unless a test says otherwise: between tiny models no draft pays, and none would be tested."""
    if "default_schedule" not in request.keywords:
        monkeypatch.setattr(resolve, "DEFAULT_SCHEDULE", "constant")
