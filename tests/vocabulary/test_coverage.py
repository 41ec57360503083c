"""What two models make of a text: by hand where laws are flat, else from one full forward per place."""

import pytest
import torch

from hf_exactassist.vocabulary.admission import as_read, pair_of
from hf_exactassist.vocabulary.coverage import coverage, readings, shared_map, shared_readings
from hf_exactassist.vocabulary.mapping import build_map
from tests.exactness.hash_model import HashConfig, HashModel
from tests.exactness.test_lone_rows import built
from tests.tiny import noisy, tiny
from tests.vocabulary.kinds import KINDS
from tests.vocabulary.test_law import longest_first, model, pieces


TARGET, ASSISTANT = pieces("a", "b", "ab"), pieces("b", "a", "ba", "c")
MAP = build_map(TARGET, ASSISTANT, 3, 4)
TEXT = [0, 2, 1, 1, 0, 0, 2, 1, 0]
READ = [longest_first(ASSISTANT)(b"".join(TARGET.text[i] for i in TEXT[: end + 1]).decode()) for end in range(9)]


@torch.no_grad()
def law(model, ids):
    return torch.softmax(model(torch.tensor([ids])).logits[0, -1].double(), dim=-1)


def mean(values):
    values = [float(value) for value in values]
    return sum(values) / len(values)


def at_each_place(target, assistant, ids, read):
    """Every acceptance by its definition: independent forwards, the map applied token by token."""
    found = []
    for end, text in enumerate(read):
        p, theirs, q = law(target, ids[: end + 1]), law(assistant, text), torch.zeros(3, dtype=torch.double)
        for token, lead in enumerate([1, 0, 1, -1]):
            q[lead] += theirs[token] if lead >= 0 else 0
        found.append(torch.minimum(p, q / q.sum()).sum().item())
    return found


def test_flat_laws_by_hand():
    """Of "b", "a", "ba", "c" only the last leads nowhere: q is 1/3 for "a" and 2/3 for "b"; p is 1/3 for each."""
    flat = [HashModel(HashConfig(vocab_size=size, sharpness=0.0)).eval() for size in (3, 4)]
    found = coverage(*flat, TEXT, READ, MAP)
    assert found.mapped_mass == pytest.approx(2 / 3)
    assert (found.assistant_mass, found.assistant_exact_mass) == (pytest.approx(3 / 4), pytest.approx(1 / 2))
    assert found.expected_acceptance == pytest.approx(2 / 3) and found.positions == 9


@pytest.mark.parametrize(("most", "places"), [(64, range(9)), (9, range(9)), (3, [1, 4, 7]), (1, [4])])
def test_laws_that_depend_on_the_text_are_compared_place_by_place(most, places):
    target, assistant = model(TARGET, 1), model(ASSISTANT, 2)
    # what is read later does not always begin with what is read before
    assert any(READ[i] != READ[i + 1][: len(READ[i])] for i in range(8))
    found = coverage(target, assistant, TEXT, READ, MAP, most)
    expected = at_each_place(target, assistant, TEXT, READ)
    assert max(expected) - min(expected) > 0.2
    assert found.expected_acceptance == pytest.approx(mean(expected[i] for i in places), abs=1e-6)
    assert found.positions == len(places)
    assert found.mapped_mass == pytest.approx(mean(law(target, TEXT[: i + 1])[:2].sum() for i in range(9)), abs=1e-6)
    theirs = [law(assistant, READ[-1][: i + 1]) for i in range(len(READ[-1]))]
    assert found.assistant_mass == pytest.approx(mean(q[:3].sum() for q in theirs), abs=1e-6)
    assert found.assistant_exact_mass == pytest.approx(mean(q[:2].sum() for q in theirs), abs=1e-6)


@pytest.mark.parametrize("kind", ["rwkv", "bloom"])
def test_assistants_that_run_row_by_row_go_back_too(kind):
    """A state that must be made anew, and a cache that is cropped."""
    target, assistant = model(TARGET, 1), built(kind, vocab_size=16)
    expected = mean(at_each_place(target, assistant, TEXT, READ))
    found = coverage(target, assistant, TEXT, READ, build_map(TARGET, ASSISTANT, 3, 16))
    assert found.expected_acceptance == pytest.approx(expected, abs=1e-5)


def test_one_tokenizer_and_a_token_that_is_not_shared():
    target, ids = tiny(), list(range(3, 23))
    shared = torch.ones(80, dtype=torch.bool)
    same = coverage(target, target, ids, shared_readings(ids, shared), shared_map(shared, 80))
    for value in (same.mapped_mass, same.assistant_mass, same.assistant_exact_mass, same.expected_acceptance):
        assert value == pytest.approx(1, abs=1e-5)
    shared[10] = False
    relative = noisy(target, 0.05)
    found = coverage(target, relative, ids, shared_readings(ids, shared), shared_map(shared, 80))
    read = [0 if token == 10 else token for token in ids]
    expected = []
    for i in range(len(ids)):
        q = law(relative, read[: i + 1]) * shared
        expected.append(torch.minimum(law(target, ids[: i + 1]), q / q.sum()).sum())
    assert found.expected_acceptance == pytest.approx(mean(expected), abs=1e-5) and found.expected_acceptance < 0.99
    lacking = mean(law(target, ids[: i + 1])[10] for i in range(len(ids)))
    assert lacking > 1e-4 and found.mapped_mass == pytest.approx(1 - lacking, abs=1e-5)


def test_places_inside_a_character_and_beyond_positions_are_left_out():
    ours, theirs = KINDS["byte level"](), KINDS["sentencepiece"]()
    text = as_read(ours, "a🤗b the café 🤗")
    pair = pair_of(len(ours), len(theirs), ours, theirs)
    read = readings(text, pair)
    inside = read.count(None)
    assert 0 < inside < len(read) and read[-1] == theirs.encode("a🤗b the café 🤗", add_special_tokens=False)
    target, assistant = tiny(vocabulary=len(ours)), tiny("gpt2", vocabulary=len(theirs))
    whole = coverage(target, assistant, text, read, pair.vocabulary_map)
    assert whole.positions == len(text) - inside
    short = tiny("gpt2", vocabulary=len(theirs), n_positions=5)
    some = coverage(target, short, text, read, pair.vocabulary_map)
    assert 0 < some.positions == sum(part is not None and len(part) <= 5 for part in read) < whole.positions
    assert some.mapped_mass == pytest.approx(whole.mapped_mass)
    few = coverage(tiny("gpt2", vocabulary=len(ours), n_positions=6), assistant, text, read, pair.vocabulary_map)
    assert few.positions == 6 - read[:6].count(None)


def test_a_text_that_the_assistant_cannot_read_has_no_acceptance():
    target, assistant = model(TARGET, 1), model(ASSISTANT, 2)
    found = coverage(target, assistant, [0, 1], [None, None], MAP)
    assert (found.assistant_mass, found.expected_acceptance, found.positions) == (None, None, 0)
    assert 0 < found.mapped_mass < 1
    with pytest.raises(ValueError, match="without tokens"):
        coverage(target, assistant, [], [], MAP)


def test_a_text_is_read_behind_its_beginning_and_without_an_end():
    from tokenizers.processors import TemplateProcessing

    tokenizer = KINDS["tiktoken"]()
    begin, end = tokenizer.bos_token_id, tokenizer.eos_token_id
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|begin|> $A <|end|>", special_tokens=[("<|begin|>", begin), ("<|end|>", end)]
    )
    assert as_read(tokenizer, "to be") == [begin, *tokenizer.encode("to be", add_special_tokens=False)]
