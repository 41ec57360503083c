"""The default schedule: as many tokens as pay, by the past alone (contract 0x05, 0x06C)."""

import pytest
import torch

import hf_exactassist
from hf_exactassist import AssistedDecoding, resolve
from hf_exactassist.drafters import AssistantModelDrafter
from hf_exactassist.schedules import AdaptiveSchedule, ConstantSchedule, RoundCosts
from hf_exactassist.schedules.acceptance import Acceptance
from hf_exactassist.verification.enumeration import total_variation
from tests.exactness.hash_model import hash_pair
from tests.exactness.test_law import assisted_law, drafter, plain_law, prompt, settings
from tests.tiny import noisy, tiny


def schedule(draft=0.1, limit=16, clocked=False):
    """One whose costs are given: a target step, `draft` for each token."""
    made = AdaptiveSchedule(RoundCosts(lambda rows, length: 1 + draft * length), limit)
    if clocked:
        made.follow_clock()
    return made


def play(made, accepted, rounds, row=0):
    """Draft lengths of rounds in which the first `accepted` tokens are right."""
    lengths = []
    for _ in range(rounds):
        length = made.length(row)
        # asking changes nothing: a round may be made again
        assert made.length(row) == length
        made.observe(row, length, min(accepted, length))
        lengths.append(length)
    return lengths


# --- what is believed of acceptance ---


def test_a_position_counts_where_it_is_reached():
    """0x05A: a rejection says nothing of what stood behind it, nor does a full accept of what would have."""
    seen, other = Acceptance(4), Acceptance(4)
    for _ in range(60):
        seen.observe(4, 1)
        other.observe(1, 1)
    first, second, third, last = seen.rates()
    assert first > 0.9 and second < 0.15
    assert third == last and second < third < first
    rates = other.rates()
    assert rates[1] == rates[2] == rates[3] > 0.85


def test_what_is_long_ago_is_forgotten():
    seen = Acceptance(2)
    for _ in range(100):
        seen.observe(2, 2)
    for _ in range(100):
        seen.observe(2, 0)
    assert seen.rates()[0] < 0.1


# --- lengths ---


def test_a_drafter_that_is_always_right_drafts_to_the_limit():
    assert play(schedule(0.02, limit=12), 99, 40)[-1] == 12


def test_a_drafter_that_is_never_right_is_hardly_asked():
    lengths = play(schedule(0.3), 0, 128)
    assert sum(lengths) <= 10 and lengths[-20:].count(0) >= 18
    # and ever less
    asked = [at for at, length in enumerate(lengths) if length]
    gaps = [after - before for before, after in zip(asked, asked[1:], strict=False)]
    assert gaps == sorted(gaps) and gaps[-1] >= 16


def test_a_drafter_that_has_become_good_is_found():
    made = schedule(0.1)
    play(made, 0, 40)
    assert min(play(made, 9, 60)[-20:]) >= 4


@pytest.mark.parametrize("right", [1, 2, 4, 7])
def test_drafts_end_where_they_stop_being_right(right):
    lengths = play(schedule(0.15), right, 200)[-50:]
    assert max(set(lengths), key=lengths.count) == right
    assert min(lengths) >= right and max(lengths) <= right + 3


def test_a_drafter_that_costs_more_than_the_target_is_hardly_asked_however_right_it_is():
    assert sum(play(schedule(1.5), 99, 100)) <= 10


def test_rows_know_nothing_of_each_other_without_a_clock():
    """Sampled text hangs on a row's seed and past, not on its company."""
    alone, together = schedule(), schedule()
    play(together, 0, 30, row=1)
    assert play(alone, 3, 30) == play(together, 3, 30)
    assert together.lengths([0, 1]) == [together.length(0), together.length(1)]


def test_with_a_clock_rows_draft_what_pays_for_all():
    made = schedule(0.2, clocked=True)
    play(made, 9, 30, row=0)
    play(made, 0, 30, row=1)
    one, other = made.length(0), made.length(1)
    both = made.lengths([0, 1])
    assert other <= 1 < both[0] == both[1] <= one


def test_times_count_with_a_clock_alone():
    fast = {True: [], False: []}
    for clocked in fast:
        made = schedule(0.1, clocked=clocked)
        for _ in range(40):
            (length,) = made.lengths([0])
            made.observe(0, length, min(length, 3))
            if clocked:
                # the estimate was far off: a draft token takes longer than the target
                made.timed(1, length, 1 + 1.5 * length)
            fast[clocked].append(length)
    assert max(fast[True][-10:]) <= 1 < min(fast[False][-10:])


def test_what_an_assistant_catches_up_on_is_not_the_cost_of_its_drafts():
    made = schedule(0.1, clocked=True)
    made.timed(1, 0, 1.0)
    made.timed(1, 2, 50.0)
    assert made.lengths([0])[0] > 0
    before = made.costs.table(1, 4)
    made.timed(1, 0, 1.0)
    made.timed(1, 2, 50.0)
    assert made.costs.table(1, 4) == pytest.approx(before)


# --- in calls ---


@pytest.mark.parametrize(("draft", "vocabulary", "tokens"), [(0.02, 2, 5), (0.3, 3, 5), (0.5, 3, 4)])
def test_law_is_the_targets(draft, vocabulary, tokens):
    """Walked with lengths that change in the middle of a text."""
    target, assistant = hash_pair(vocabulary)
    made = schedule(draft, limit=3)
    loop = AssistedDecoding(drafter(assistant, vocabulary), made)
    kwargs, inputs = settings(tokens), prompt(vocabulary)
    ours = assisted_law(target, inputs, loop, **kwargs)
    assert total_variation(plain_law(target, inputs, **kwargs), ours) < 1e-6


class _Told(ConstantSchedule):
    """Writes down what it is told."""

    def __init__(self):
        super().__init__(2)
        self.clock, self.times = 0, []

    def follow_clock(self):
        self.clock += 1

    def timed(self, rows, length, seconds):
        self.times.append((rows, length, seconds))


@pytest.mark.parametrize("how", ["greedy", "maximal", "shared_noise"])
def test_times_are_told_where_the_text_cannot_depend_on_them(how):
    target, told = tiny(), _Told()
    ids = torch.tensor([[5, 6, 7], [8, 9, 10]])
    options = {} if how == "greedy" else {"coupling": how}
    shared = torch.ones(target.config.vocab_size, dtype=torch.bool)
    loop = AssistedDecoding(AssistantModelDrafter(noisy(target, 0.05), shared), told, **options)
    output = target.generate(
        ids, do_sample=how != "greedy", max_new_tokens=9, eos_token_id=None, custom_generate=loop,
        return_dict_in_generate=True,
    )  # fmt: skip
    if how == "maximal":
        assert told.clock == 0 and told.times == []
        return
    assert told.clock == 1 and len(told.times) == output.assist_stats.rounds
    assert {rows for rows, _, _ in told.times} <= {1, 2} and max(length for _, length, _ in told.times) == 2
    assert all(seconds > 0 for _, _, seconds in told.times)


@pytest.mark.default_schedule
def test_it_is_the_default():
    target, assistant = tiny(), tiny(num_hidden_layers=1)
    given = resolve.Settings({}, (target.generation_config,))
    _, made = resolve.resolve_drafter(target, given, assistant)
    assert isinstance(made, AdaptiveSchedule) and made.limit == 16
    cases = {
        ("num_assistant_tokens", 4): ConstantSchedule,
        ("num_assistant_tokens_schedule", "constant"): ConstantSchedule,
        ("num_assistant_tokens_schedule", "adaptive"): AdaptiveSchedule,
    }
    for (name, value), kind in cases.items():
        _, made = resolve.resolve_drafter(target, resolve.Settings({name: value}, ()), assistant)
        assert type(made) is kind
    both = {"num_assistant_tokens": 4, "num_assistant_tokens_schedule": "adaptive"}
    _, made = resolve.resolve_drafter(target, resolve.Settings(both, ()), assistant)
    assert isinstance(made, AdaptiveSchedule) and made.limit == 4


@pytest.mark.default_schedule
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("how", ["greedy", "maximal", "shared_noise"])
def test_texts_of_default_calls(rows, how):
    """Greedy and shared noise: plain text. Otherwise: the same text again, whatever other calls have found out."""
    target = tiny(num_hidden_layers=6)
    assistant = tiny(num_hidden_layers=1)
    ids = torch.randint(3, 60, (rows, 6), generator=torch.Generator().manual_seed(1))
    given = {"do_sample": how != "greedy", "max_new_tokens": 30, "eos_token_id": None, "pad_token_id": 0}
    options = {} if how == "greedy" else {"coupling": how}
    texts = []
    for _ in range(3):
        torch.manual_seed(3)
        texts.append(hf_exactassist.generate(target, ids, **given, **options, assistant_model=assistant).tolist())
        # learns what rounds take
        hf_exactassist.generate(target, ids, max_new_tokens=9, do_sample=False, assistant_model=assistant)
    if how != "maximal":
        torch.manual_seed(3)
        texts.append(target.generate(ids, **given).tolist())
    assert all(text == texts[0] for text in texts)
