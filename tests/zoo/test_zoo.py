"""Assisted text is plain text on every causal-LM type of Transformers, alone and in a padded batch."""

import pytest

from .build import TYPES
from .trial import CRASHED, DIFFERENT, NOT_BUILT, PLAIN_FAILS, trial


# a trial limits itself by the alarm that the timer of `method="signal"` would use
@pytest.mark.zoo
@pytest.mark.timeout(120, method="thread")
@pytest.mark.parametrize("model_type", TYPES)
def test_assisted_text_is_plain_text(model_type):
    outcome = trial(model_type)
    if outcome.status in (NOT_BUILT, PLAIN_FAILS):
        pytest.skip(f"{outcome.status}: {outcome.detail}")
    assert outcome.status not in (CRASHED, DIFFERENT), outcome
