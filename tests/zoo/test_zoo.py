"""Assisted text is plain text on every causal-LM and encoder-decoder type of Transformers, also in a padded batch."""

import pytest

from .build import ENCODER_DECODER_TYPES, TYPES
from .trial import CRASHED, DIFFERENT, NOT_BUILT, PLAIN_FAILS, trial


# a trial limits itself by the alarm that the timer of `method="signal"` would use
pytestmark = [pytest.mark.zoo, pytest.mark.timeout(120, method="thread")]


@pytest.mark.parametrize("model_type", TYPES)
def test_assisted_text_is_plain_text(model_type):
    _check(trial(model_type))


@pytest.mark.parametrize("model_type", ENCODER_DECODER_TYPES)
def test_assisted_text_of_encoder_decoders_is_plain_text(model_type):
    _check(trial(model_type, encoder_decoder=True))


def _check(outcome):
    if outcome.status in (NOT_BUILT, PLAIN_FAILS):
        pytest.skip(f"{outcome.status}: {outcome.detail}")
    assert outcome.status not in (CRASHED, DIFFERENT), outcome
