"""Rows and bytes that a round needs for a while (contract 0x05F)."""

import pytest

from hf_exactassist.ledger import (
    discarded_rows,
    progress_by_length,
    survival,
    temporary_bytes,
    temporary_bytes_per_token,
    written_rows,
)
from tests.ledger.test_prefixes import BACK, FRONT


def test_rows_of_both_layouts():
    assert written_rows(4, "retained") == 4
    # the last published token's too
    assert written_rows(4, "replay") == 5


def test_what_is_not_accepted_is_discarded():
    assert discarded_rows(survival(FRONT)) == pytest.approx(4 - 2.5232)
    assert discarded_rows(survival(BACK)) == pytest.approx(4 - 1.0612)
    assert discarded_rows(survival([1.0] * 3)) == 0
    assert discarded_rows([]) == 0


def test_bytes_grow_with_what_is_drafted():
    # four rows of 100 bytes, five places of 10
    assert temporary_bytes(4, 100, 10) == 450
    assert temporary_bytes(4, 100, 10, rows=3) == 1350
    assert temporary_bytes(0, 100, 10) == 10
    assert temporary_bytes_per_token(survival(FRONT), 100, 10) == pytest.approx(450 / 3.5232)
    assert temporary_bytes_per_token(survival(BACK), 100, 10) == pytest.approx(450 / 2.0612)


def test_what_is_best_alone_can_be_too_much_together():
    """Texts of 1000 bytes share 12000. Alone three draft tokens are fastest; together two, as more texts find room."""
    progress = progress_by_length(survival(FRONT))
    speeds = [tokens / (1 + 0.2 * length) for length, tokens in enumerate(progress)]
    room = [12000 // (1000 + temporary_bytes(length, 250)) for length in range(5)]
    goodput = [texts * speed for texts, speed in zip(room, speeds, strict=True)]
    assert room == [12, 9, 8, 6, 6]
    assert speeds.index(max(speeds)) == 3 and goodput.index(max(goodput)) == 2


@pytest.mark.parametrize(
    ("refused", "why"),
    [
        (lambda: written_rows(4, "other"), "got 'other'"),
        (lambda: written_rows(-1, "replay"), "`length` cannot be negative"),
        (lambda: discarded_rows([0.4, 0.5]), "rises"),
        (lambda: temporary_bytes(4, -1), "`row_bytes` cannot be negative"),
        (lambda: temporary_bytes(4, 1, -1), "`place_bytes` cannot be negative"),
        (lambda: temporary_bytes(4, 1, 1, -1), "`rows` cannot be negative"),
        (lambda: temporary_bytes_per_token([0.5], -1), "`row_bytes` cannot be negative"),
    ],
)
def test_storage_that_makes_no_sense(refused, why):
    with pytest.raises(ValueError, match=why):
        refused()
