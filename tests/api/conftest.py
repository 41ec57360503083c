import functools

import pytest

from hf_exactassist import AssistedDecoding


@pytest.fixture
def loops(monkeypatch):
    """The `AssistedDecoding` objects that were run: says whether this library's loop decoded a call."""
    run, ran = AssistedDecoding.__call__, []

    @functools.wraps(run)
    def counted(self, *args, **kwargs):
        ran.append(self)
        return run(self, *args, **kwargs)

    monkeypatch.setattr(AssistedDecoding, "__call__", counted)
    return ran
