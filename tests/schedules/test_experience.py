"""What calls of a pair leave for the next ones (contract 0x05A, 0x05C)."""

import pytest

import hf_exactassist
from hf_exactassist import resolve
from hf_exactassist.schedules import AdaptiveSchedule, Experience, RoundCosts
from tests.tiny import noisy, prompts, tiny


def schedule(experience, clocked=True):
    made = AdaptiveSchedule(RoundCosts(lambda rows, length: 1 + 0.15 * length), 16, experience)
    if clocked:
        made.follow_clock()
    return made


def call(experience, accepted, clocked=True, rounds=20):
    made = schedule(experience, clocked)
    for _ in range(rounds):
        (length,) = made.lengths([0])
        made.observe(0, length, min(length, accepted))
    return made


@pytest.mark.parametrize("accepted", [0, 16])
def test_the_next_call_begins_where_the_last_one_ended(accepted):
    experience = Experience()
    fresh = schedule(experience).lengths([0])[0]
    call(experience, accepted)
    after = schedule(experience).lengths([0])[0]
    assert after <= 1 < fresh if accepted == 0 else after >= fresh > 1
    assert experience.rate() < 0.5 if accepted == 0 else experience.rate() > 0.9


def test_a_pair_that_was_bad_is_tried_again():
    experience = Experience()
    call(experience, 0)
    drafted = []
    made = schedule(experience)
    for _ in range(40):
        (length,) = made.lengths([0])
        made.observe(0, length, length)
        drafted.append(length)
    assert drafted[0] <= 1 and max(drafted[-10:]) >= 4


def test_without_a_clock_calls_know_nothing_of_each_other():
    """Equal seeds give equal text, whatever was decoded before."""
    experience, untouched = Experience(), Experience()
    call(experience, 0, clocked=False)
    assert experience.rate() == untouched.rate()
    call(experience, 0)
    assert schedule(experience, clocked=False).lengths([0]) == schedule(untouched, clocked=False).lengths([0])


@pytest.mark.default_schedule
def test_it_is_kept_with_the_pair():
    target = tiny()
    good, bad = noisy(target, 0.001), tiny(seed=7)
    settings = {"do_sample": False, "max_new_tokens": 40, "eos_token_id": None, "pad_token_id": 0}
    for assistant in (good, bad):
        before = resolve._known(target, assistant).experience
        assert before.rate() == Experience().rate()
        hf_exactassist.generate(target, **prompts((6,)), **settings, assistant_model=assistant)
        assert resolve._known(target, assistant).experience is before
    rates = [resolve._known(target, assistant).experience.rate() for assistant in (good, bad)]
    assert rates[1] <= 0.7 <= rates[0]


def test_much_experience_counts_for_more_than_little():
    """One odd draft at the beginning of a call says little where the pair is known."""
    little, much = Experience(), Experience()
    call(little, 8, rounds=1)
    call(much, 8, rounds=60)
    after = {}
    for name, experience in (("little", little), ("much", much)):
        made = schedule(experience)
        made.lengths([0])
        made.observe(0, 4, 0)
        after[name] = made.lengths([0])[0]
    assert little.weight() < much.weight() <= 8
    assert after["little"] < after["much"]
