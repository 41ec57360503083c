"""Drafts pay for what the assistant reads before them: long prompts, and what it has missed (contract 0x05C)."""

import copy

import pytest
import torch

import hf_exactassist
from hf_exactassist import AssistedDecoding
from hf_exactassist.drafters import AssistantModelDrafter
from hf_exactassist.models.effort import Effort, reading_estimate
from hf_exactassist.schedules import AdaptiveSchedule, ConstantSchedule, RoundCosts
from hf_exactassist.schedules import adaptive as adaptive_module
from hf_exactassist.verification.enumeration import total_variation
from tests import tiny_multimodal as multimodal
from tests.exactness.hash_model import hash_pair
from tests.exactness.test_law import assisted_law, drafter, plain_law, prompt, settings
from tests.exactness.test_work import LENGTHS, query_tokens
from tests.schedules.test_adaptive import play
from tests.tiny import noisy, prompts, tiny


GREEDY = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}


def schedule(unread, left, draft=0.1, reading=0.01, clocked=False):
    """A step of the target takes 1, a draft token `draft`, a token that the assistant reads `reading`."""
    made = AdaptiveSchedule(RoundCosts(lambda rows, length: 1 + draft * length, reading))
    made.start()
    if clocked:
        made.follow_clock()
    made.expect(unread, left)
    # the round that reads the prompts
    for row in range(len(unread)):
        made.observe(row, 0, 0)
    return made


# --- unit tests with given costs ---


@pytest.mark.parametrize("clocked", [False, True])
def test_a_long_prompt_is_not_read_for_a_few_tokens(clocked):
    few, many = (schedule([4000], left, clocked=clocked) for left in (5, 2000))
    assert few.lengths([0]) == [0] and many.lengths([0])[0] > 0
    # nor for a try
    assert play(few, 99, 4) == [0] * 4


def test_reading_is_weighed_against_what_is_saved():
    """Of rounds that take 1 without drafts: the border, worked out from the rates believed at first."""
    rates = [0.7] * 16
    progress, costs = [1.0], [1.0]
    for rate in rates:
        progress.append(progress[-1] + rate ** len(progress))
        costs.append(costs[-1] + 0.1)
    saved = 1 - min(cost / tokens for cost, tokens in zip(costs, progress, strict=True))
    left = 100
    border = int(saved * left / 0.01)
    # a token of the prefill is unread too, and no longer to come
    assert schedule([border - 2], left + 1).length(0) > 0
    assert schedule([border + 1], left + 1).length(0) == 0


def test_short_rests_hold_short_drafts():
    """What a long draft would save does not pay for reading where only a short one fits."""
    saved = {1: 1 - 1.1 / 1.7, 4: 1 - 1.4 / (1 + 0.7 + 0.49 + 0.343 + 0.2401)}
    few, many = (int(saved[length] * 2 / 0.01) for length in (1, 4))
    assert few + 10 < many - 10
    assert schedule([few - 2], 3).length(0) == 1
    assert schedule([few + 10], 3).length(0) == schedule([many - 10], 3).length(0) == 0


def test_what_has_been_read_is_not_paid_for_again():
    made = schedule([4000], 450)
    assert made.length(0) > 0
    made.observe(0, 4, 4)
    play(made, 3, 100)
    # nobody would read such a prompt for the tokens that are left
    assert made.length(0) > 0 == schedule([4000], 450 - 5 - 100 * 4).length(0)


def test_accepted_tokens_are_no_longer_to_come():
    """After a pause what was missed is read for the tokens that are left then."""
    for pause in (10, 14, 15, 20):
        made = schedule([0], 100, reading=2.0)
        for _ in range(5):
            made.observe(0, 9, 9)
        for _ in range(pause):
            made.observe(0, 0, 0)
        # of the tokens left, drafts that are all but always right save 0.84
        pays = 2 * pause < 0.84 * (100 - 1 - 5 * 10 - pause)
        assert bool(made.length(0)) == pays == (pause < 15)


@pytest.mark.parametrize("clocked", [False, True])
def test_tries_cost_little_beside_what_is_left(clocked):
    """A drafter that does not pay by the estimate is tried where reading for it is cheap, and not elsewhere."""
    assert adaptive_module._BET == 0.05
    cheap, dear = (schedule([unread], 101, draft=1.5, clocked=clocked) for unread in (490, 510))
    assert cheap.lengths([0]) == [1] and dear.lengths([0]) == [0]
    # less is left, and more unread, with every token
    assert sum(play(dear, 99, 90)) == 0


def test_tries_stop_before_the_end():
    """What was missed since the last try is read for the next one, which must pay too."""
    tries = {}
    for reading in (0, 0.02):
        lengths = play(schedule([0], 200, draft=1.5, reading=reading), 0, 198)
        tries[reading] = [at for at, length in enumerate(lengths) if length]
    assert tries[0.02] == tries[0][:-1] and tries[0][-1] == 197


def test_without_a_clock_a_row_knows_nothing_of_the_others():
    together = schedule([4000, 20], 60)
    assert together.lengths([0, 1]) == [schedule([4000], 60).length(0), schedule([20], 60).length(0)]
    assert together.length(0) == 0 < together.length(1)


def test_with_a_clock_all_rows_pay_for_all():
    """One forward reads for all of them."""
    assert schedule([4000, 20, 20, 20], 60, clocked=True).lengths([0, 1, 2, 3]) == [0] * 4
    assert min(schedule([400, 20, 20, 20], 60, clocked=True).lengths([0, 1, 2, 3])) > 0


def test_a_schedule_that_is_told_nothing_drafts_at_once():
    made = AdaptiveSchedule(RoundCosts(lambda rows, length: 1 + 0.1 * length, 5.0))
    assert made.length(0) > 0


def test_calls_do_not_inherit_what_lay_before_others():
    made = schedule([4000], 5)
    made.start()
    assert made.length(0) > 0


def test_the_estimate_is_what_a_longer_forward_takes():
    small, large = tiny(num_hidden_layers=1), tiny(num_hidden_layers=4)
    assert 0 < reading_estimate(small) < reading_estimate(large)
    effort = Effort(large)
    assert reading_estimate(large) == pytest.approx((effort.seconds(1001) - effort.seconds(1)) / 1000)


# --- in calls ---


class Told(ConstantSchedule):
    def expect(self, unread, left):
        self.told = (list(unread), left)


@pytest.mark.parametrize("how", ["greedy", "maximal"])
def test_a_schedule_is_told_what_is_unread_and_left(how):
    target, made = tiny(), Told(2)
    shared = torch.ones(target.config.vocab_size, dtype=torch.bool)
    loop = AssistedDecoding(AssistantModelDrafter(noisy(target, 0.05), shared), made)
    target.generate(
        **prompts(LENGTHS), **{**GREEDY, "do_sample": how != "greedy"}, max_new_tokens=9, custom_generate=loop
    )
    assert made.told == (list(LENGTHS), 9)


def test_a_prompt_with_images_is_paid_for_already():
    """It is read as the call starts."""
    target = multimodal.tiny("llava")
    inputs, made = multimodal.prompts("llava", (1,)), Told(2)
    shared = torch.ones(multimodal.VOCABULARY, dtype=torch.bool)
    for shown, unread in (({"pixel_values": inputs["pixel_values"]}, 0), ({}, inputs["input_ids"].shape[1])):
        loop = AssistedDecoding(AssistantModelDrafter(copy.deepcopy(target), shared, shown=shown), made)
        target.generate(**inputs, **GREEDY, max_new_tokens=5, custom_generate=loop)
        assert made.told == ([unread], 5)


@pytest.mark.parametrize("how", ["greedy", "maximal", "shared_noise"])
@pytest.mark.parametrize("lengths", [(300,), (300, 260)])
def test_an_assistant_that_cannot_pay_reads_nothing(lengths, how):
    target = tiny()
    assistant, inputs = noisy(target, 0.01), prompts(lengths)
    given, shared = {**GREEDY, "do_sample": how != "greedy"}, torch.ones(target.config.vocab_size, dtype=torch.bool)
    options = {} if how == "greedy" else {"coupling": how}
    for new, reads in ((4, False), (60, True)):
        made = AdaptiveSchedule(RoundCosts(lambda rows, length: 1 + 0.1 * length, 0.02))
        loop = AssistedDecoding(AssistantModelDrafter(assistant, shared), made, **options)
        with query_tokens(assistant) as widths:
            output = target.generate(
                **inputs, **given, max_new_tokens=new, custom_generate=loop, return_dict_in_generate=True
            )
        assert bool(widths) == reads == bool(output.assist_stats.drafted)
        assert output.sequences.shape[1] == 300 + new


@pytest.mark.parametrize(("draft", "reading"), [(0.3, 0.1), (0.5, 0.01), (0.02, 1.0)])
def test_law_is_the_targets(draft, reading):
    """Walked where reading pays for drafts of changing length, for tries alone, and for nothing."""
    vocabulary, tokens = 2, 5
    target, assistant = hash_pair(vocabulary)
    made = AdaptiveSchedule(RoundCosts(lambda rows, length: 1 + draft * length, reading), 3)
    kwargs, inputs = settings(tokens), prompt(vocabulary)
    ours = assisted_law(target, inputs, AssistedDecoding(drafter(assistant, vocabulary), made), **kwargs)
    assert total_variation(plain_law(target, inputs, **kwargs), ours) < 1e-6


@pytest.mark.default_schedule
def test_default_calls_weigh_the_prompt(monkeypatch):
    """With the estimates of the models themselves, an assistant as slow as it gets beside its target."""
    from hf_exactassist import resolve

    target, assistant = tiny(num_hidden_layers=6), tiny(num_hidden_layers=1)
    inputs = prompts([300])
    for reading, reads in ((0.0, True), (1.0, False)):
        monkeypatch.setattr(resolve, "reading_estimate", lambda model, reading=reading: reading)
        resolve._KNOWN.pop(target, None)
        with query_tokens(assistant) as widths:
            hf_exactassist.generate(target, **inputs, **GREEDY, max_new_tokens=20, assistant_model=assistant)
        assert bool(widths) == reads
