"""Ways of decoding: what is counted, on a tiny pair; nothing is timed here."""

import pytest

from hf_exactassist.benchmark.pair import Pair
from hf_exactassist.benchmark.variants import OURS, PLAIN, TRANSFORMERS, Variant, decode
from tests.tiny import EVEN_NOISE, noisy, prompts, tiny


@pytest.fixture(scope="module")
def pair():
    target = tiny()
    target.generation_config.eos_token_id = None
    return Pair(target, None, noisy(target, EVEN_NOISE["llama"]))


def test_rounds_are_counted_by_the_length_of_their_drafts(pair):
    rows = prompts([6, 6])["input_ids"].tolist()
    settings = {"max_new_tokens": 14, "do_sample": False}
    plain = decode(pair, Variant(PLAIN), rows, settings)
    theirs, ours = (decode(pair, Variant(kind, 3), rows, settings) for kind in (TRANSFORMERS, OURS))
    assert plain.texts == theirs.texts == ours.texts and plain.drafts == {0: 26}
    for made, tokens in ((theirs, 28), (ours, 26)):
        # what drafts did not give came one a round; ours reads the prompt, and gets a token, before its first round
        rounds = sum(made.drafts.values())
        drafted = sum(length * count for length, count in made.drafts.items())
        assert max(made.drafts) == 3 and rounds <= tokens <= rounds + drafted
    assert ours.stats.drafted == sum(length * count for length, count in ours.drafts.items())
    # alone, as they go through the texts in turn
    alone = [decode(pair, Variant(TRANSFORMERS, 3), [row], settings) for row in rows]
    assert sum(sum(one.drafts.values()) for one in alone) == sum(theirs.drafts.values())
