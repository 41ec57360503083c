"""Both frontier layouts in the real loop: other rows are read, the same states follow (contract 0x01, 0x04, 0x06).

Sessions of the two layouts run side by side and are compared after every step, tokens and cache rows by identity.
"""

import copy
from dataclasses import replace
from unittest import mock

import pytest
import torch

import hf_exactassist
from hf_exactassist import AssistedDecoding
from hf_exactassist.decoding import SteppedDecoding
from hf_exactassist.drafters import Drafter
from hf_exactassist.errors import BrokenRound, DuplicatedFrontier, ForeignRows, MixedLayouts, ShiftedRows
from hf_exactassist.models.runner import RowRunner
from hf_exactassist.records import Draft
from hf_exactassist.schedules import ConstantSchedule
from hf_exactassist.scoring import Scorer
from hf_exactassist.state.layout import visibility
from hf_exactassist.verification.enumeration import total_variation
from tests.api.helpers import assert_same_cache, cache_of
from tests.exactness.hash_model import hash_pair
from tests.exactness.test_law import assisted_law, drafter, pad, plain_law, prompt
from tests.exactness.test_law import settings as sampling
from tests.tiny import EVEN_NOISE, ScriptedDrafter, looping, noisy, prompts, tiny


LAYOUTS = ("replay", "retained")
LENGTHS = [9, 4, 6]
SETTINGS = {"eos_token_id": [7, 23], "pad_token_id": 0, "max_new_tokens": 24}
MODES = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True, "seed": 28},
    # has rounds cut inside their accepted drafts
    "sampled to an end": {"do_sample": True, "seed": 9},
    "shared noise": {"do_sample": True, "seed": 28, "coupling": "shared_noise"},
}
OUTPUTS = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
LAYERS = {"output_hidden_states": True, "output_attentions": True}


class Saying(Drafter):
    """Proposes a list of drafts, one a round and the same for every row; nothing when they are used up."""

    def __init__(self, drafts=()):
        self.drafts = list(drafts)

    def start(self, context):
        super().start(context)
        self._left = list(self.drafts)

    def propose(self, lengths):
        tokens = self._left.pop(0) if self._left else []
        table = torch.tensor([tokens] * len(lengths), dtype=torch.long).reshape(len(lengths), -1)
        return Draft(table, tuple(min(len(tokens), wanted) for wanted in lengths))


def with_drafter(target, inputs, made, k, layout, **settings):
    """A session whose drafter is given: `generate` prepares the call."""
    loop = SteppedDecoding(made, ConstantSchedule(k), layout=layout)
    return target.generate(**inputs, **{**SETTINGS, "do_sample": False, **settings}, custom_generate=loop)


# --- the worked snapshot ---


PROMPT, FIRST, DRAFTED, RECOVERED = [1, 4, 7, 9, 3], 12, [8, 6, 2], 11
TEXT = [*PROMPT, FIRST, 8, 6, RECOVERED]


def worked_choice(row, ids):
    """The target's next token, a function of the prefix alone."""
    ids = ids.tolist()
    return [TEXT[len(ids)] if len(ids) < len(TEXT) and ids == TEXT[: len(ids)] else 5]


@pytest.fixture
def worked(layout):
    """The snapshot's session with its first token published, and what the target has been shown since."""
    target, seen = tiny(vocabulary=16), []

    def look(module, args, kwargs):
        if "position_ids" in kwargs:
            seen.append((kwargs["input_ids"][0].tolist(), kwargs["position_ids"][0].tolist()))

    session = with_drafter(
        target, {"input_ids": torch.tensor([PROMPT])}, Saying([DRAFTED]), 3, layout,
        eos_token_id=None, max_new_tokens=8, prefix_allowed_tokens_fn=worked_choice,
    )  # fmt: skip
    assert session.step().tokens == ((FIRST,),)
    target.register_forward_pre_hook(look, with_kwargs=True)
    return session, seen


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_worked_snapshot(worked, layout):
    """0x01C: coordinates, what is read at which positions, what becomes of it."""
    session, seen = worked
    before = session.coordinate().rows[0]
    assert (before.length, before.cached, before.position) == (6, 5, 6)
    assert session.scorer.target.cache.tokens[0, :5].tolist() == PROMPT
    commit = session.step()
    row = commit.coordinate.rows[0]
    assert (row.length, row.cached, row.position) == (6, 5 if layout == "replay" else 6, 6)
    assert commit.layout == session.coordinate().layout == layout
    assert seen == ([([12, 8, 6, 2], [5, 6, 7, 8])] if layout == "replay" else [([12], [5]), ([8, 6, 2], [6, 7, 8])])
    assert (commit.drafted, commit.accepted, commit.terminal) == ((3,), (2,), ("recovered",))
    assert commit.tokens == ((8, 6, 11),) and commit.discarded_kv == ((2,),)
    assert commit.committed_kv == ((12, 8, 6) if layout == "replay" else (8, 6),)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_worked_snapshots_cache_is_that_of_its_text(worked, layout):
    """0x01C, 0x06C: by identity and by value; the recovered token is the frontier and has no row."""
    session, _ = worked
    session.step()
    after, cache = session.coordinate().rows[0], session.scorer.target.cache
    assert (after.length, after.cached, after.position) == (9, 8, 9)
    assert session.scorer.cached == [8] and session.rows.frontiers() == [RECOVERED]
    assert cache.tokens[0, :8].tolist() == TEXT[:-1]
    with torch.no_grad():
        outputs = session.scorer.target.model(input_ids=torch.tensor([TEXT[:-1]]), use_cache=True)
    for ours, theirs in zip(cache.layers, cache_of(outputs).layers, strict=True):
        torch.testing.assert_close(ours.keys[:, :, :8], theirs.keys, rtol=0, atol=1e-5)
        torch.testing.assert_close(ours.values[:, :, :8], theirs.values, rtol=0, atol=1e-5)
    assert session.result()[0].tolist() == [*TEXT, 5, 5, 5, 5]


# --- side by side ---


def cached_tokens(session):
    """Of each active row, the tokens its cached columns were made from."""
    scorer, shift = session.scorer, session.scorer.shift
    held = [scorer.held.index(row) for row in session.rows.active]
    ends = [shift + end for end in scorer.cached]
    return [scorer.target.cache.tokens[i, shift:end].tolist() for i, end in zip(held, ends, strict=True)]


def texts(session):
    rows = session.rows
    return [rows.ids[row, : rows.lengths[row]].tolist() for row in rows.active]


def same_successor(replay, retained):
    """0x04J: cache and frontier are the text, in both; so are the random numbers that are used up."""
    assert texts(replay) == texts(retained)
    assert cached_tokens(replay) == cached_tokens(retained) == [text[:-1] for text in texts(replay)]
    assert replay.rows.frontiers() == retained.rows.frontiers() == [text[-1] for text in texts(replay)]
    states = [
        {name: value for name, value in vars(session.rows.state).items() if name not in ("hashes", "last")}
        for session in (replay, retained)
    ]
    assert states[0] == states[1]


SAME = (
    "rows", "drafted", "accepted", "tokens", "stops", "terminal", "discarded_kv",
    "spent_before", "spent_after", "processors_before", "processors_after",
)  # fmt: skip


def side_by_side(opened):
    """Steps a session of each layout, compares them after every step.

    Args:
        opened: opens a session of the layout it is given.

    Returns:
        both layouts' outputs, and the pairs of commits.
    """
    sessions, rounds = [opened(layout) for layout in LAYOUTS], []
    while True:
        replay, retained = (session.step() for session in sessions)
        if replay is None or retained is None:
            break
        assert [getattr(replay, name) for name in SAME] == [getattr(retained, name) for name in SAME]
        same_successor(*sessions)
        rounds.append((replay, retained))
    assert replay is retained is None
    return [session.result() for session in sessions], rounds


def same_outputs(outputs):
    """Scores, logits, cache and, where asked for, layers; one forward more for each round that drafted."""
    replay, retained = outputs
    assert torch.equal(replay.sequences, retained.sequences)
    for name in ("scores", "logits", "hidden_states", "attentions"):
        ours, theirs = getattr(replay, name, None), getattr(retained, name, None)
        assert (ours is None) == (theirs is None)
        for entries in zip(ours or (), theirs or (), strict=True):
            tables = [[entry] if isinstance(entry, torch.Tensor) else list(entry) for entry in entries]
            assert [table.shape for table in tables[0]] == [table.shape for table in tables[1]]
            torch.testing.assert_close(*tables, rtol=0, atol=1e-4)
    if cache_of(replay) is not None:
        assert_same_cache(cache_of(retained), cache_of(replay))
    told = ("seconds", "costs", "timed")
    counters = [{k: v for k, v in vars(output.assist_stats).items() if k not in told} for output in outputs]
    forwards = [counter.pop("target_forwards") for counter in counters]
    assert counters[0] == counters[1]
    return forwards


@pytest.fixture(scope="module")
def pairs():
    """Target and assistant of each architecture, on the attention path that returns its attention."""
    made = {}
    for architecture in ("llama", "mistral", "gpt2"):
        target = tiny(architecture)
        target.set_attn_implementation("eager")
        made[architecture] = target, noisy(target, EVEN_NOISE[architecture])
    return made


@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("architecture", ["llama", "mistral", "gpt2"])
def test_every_step_has_the_same_successor(pairs, architecture, mode, k):
    """0x04J, 0x06C; rows are padded, end at different times and, with mistral, leave the window behind."""
    target, assistant = pairs[architecture]
    call = {**SETTINGS, **MODES[mode], **OUTPUTS, **LAYERS, "assistant_model": assistant, "num_assistant_tokens": k}
    outputs, rounds = side_by_side(
        lambda layout: hf_exactassist.start(target, **prompts(LENGTHS), **call, layout=layout)
    )
    replayed, retained = same_outputs(outputs)
    drafting = sum(max(commit.drafted) > 0 for commit, _ in rounds)
    assert retained - replayed == drafting > 2
    assert len(outputs[0].hidden_states) == len(outputs[0].attentions) == len(outputs[0].scores) > 9
    if k == 3 and mode == "sampled to an end" and architecture == "llama":
        assert {end for commit, _ in rounds for end in commit.terminal} == {"recovered", "bonus", "stop"}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("architecture", ["llama", "mistral", "gpt2"])
def test_a_row_alone(pairs, architecture, mode):
    """0x04J, on a row without padding."""
    target, assistant = pairs[architecture]
    call = {**SETTINGS, **MODES[mode], **OUTPUTS, **LAYERS, "eos_token_id": None, "num_assistant_tokens": 3}
    outputs, _ = side_by_side(
        lambda layout: hf_exactassist.start(target, **prompts([6]), **call, assistant_model=assistant, layout=layout)
    )
    same_outputs(outputs)
    assert outputs[0].assist_stats.accepted > 0


@pytest.mark.parametrize("mode", ["greedy", "sampled", "shared noise"])
def test_draft_lengths_that_change(pairs, mode):
    """Each row has a schedule of its own, and sees the same rounds."""
    target = pairs["llama"][0]
    assistant = noisy(target, 3 * EVEN_NOISE["llama"])
    call = {
        **SETTINGS, **MODES[mode], **OUTPUTS, "eos_token_id": None, "assistant_model": assistant,
        "num_assistant_tokens": 2, "num_assistant_tokens_schedule": "heuristic",
    }  # fmt: skip
    outputs, rounds = side_by_side(
        lambda layout: hf_exactassist.start(target, **prompts(LENGTHS), **call, layout=layout)
    )
    same_outputs(outputs)
    assert any(len(set(commit.drafted)) > 1 for commit, _ in rounds)
    assert len({drafted for commit, _ in rounds for drafted in commit.drafted}) > 2


@pytest.mark.parametrize("architecture", ["llama", "mistral", "gpt2"])
def test_drafts_of_different_lengths(pairs, architecture):
    """0x06B: in one round rows draft none, one and four, and accept what the script says."""

    class Ragged(ScriptedDrafter):
        def propose(self, lengths):
            shorter = [(0, 1, 4)[(row + self.round) % 3] for row in self.context.rows.active]
            return super().propose([min(pair) for pair in zip(lengths, shorter, strict=True)])

    target, inputs = pairs[architecture][0], prompts(LENGTHS)
    greedy = target.generate(**inputs, **{**SETTINGS, "eos_token_id": None}, do_sample=False)

    def opened(layout):
        scripted = Ragged(greedy, lambda row, number: (row + number // 3) % 5)
        return with_drafter(target, inputs, scripted, 4, layout, eos_token_id=None, **OUTPUTS, **LAYERS)

    outputs, rounds = side_by_side(opened)
    same_outputs(outputs)
    assert torch.equal(outputs[0].sequences, greedy)
    assert any({0, 1, 4} == set(commit.drafted) for commit, _ in rounds)


@pytest.mark.parametrize("mode", ["greedy", "sampled", "shared noise"])
def test_rounds_without_any_draft(mode):
    """0x06B: prompt lookup finds nothing in some; the retained layout then reads no block at all."""
    target, inputs = looping()
    call = {**SETTINGS, **MODES[mode], **OUTPUTS, "prompt_lookup_num_tokens": 3, "max_new_tokens": 16}
    batch = {"input_ids": torch.cat([inputs["input_ids"], prompts([inputs["input_ids"].shape[1]])["input_ids"]])}
    outputs, rounds = side_by_side(lambda layout: hf_exactassist.start(target, **batch, **call, layout=layout))
    replayed, retained = same_outputs(outputs)
    widths = [max(commit.drafted) for commit, _ in rounds[1:]]
    assert retained - replayed == sum(width > 0 for width in widths)
    assert 0 in {drafted for commit, _ in rounds[1:] for drafted in commit.drafted} and max(widths) == 3


@pytest.mark.parametrize("mode", MODES)
def test_a_drafter_that_returns_nothing(mode):
    """Plain decoding in either layout: as many forwards as tokens."""
    target = tiny()
    settings = {**MODES[mode], **OUTPUTS, **LAYERS}
    options = {name: settings.pop(name) for name in ("seed", "coupling") if name in settings}

    def opened(layout):
        loop = SteppedDecoding(Saying(), ConstantSchedule(3), layout=layout, **options)
        return target.generate(**prompts(LENGTHS), **SETTINGS, **settings, custom_generate=loop)

    outputs, rounds = side_by_side(opened)
    assert same_outputs(outputs) == [len(rounds)] * 2 and outputs[0].assist_stats.drafted == 0


def test_prompts_that_come_as_embeddings():
    """Their slots in the cache have no columns in the result."""
    target = tiny()
    embedded = {"inputs_embeds": target.get_input_embeddings()(prompts([6])["input_ids"]).detach()}
    call = {**SETTINGS, **OUTPUTS, "do_sample": False, "prompt_lookup_num_tokens": 3}
    outputs, _ = side_by_side(lambda layout: hf_exactassist.start(target, **embedded, **call, layout=layout))
    same_outputs(outputs)
    plain = target.generate(**prompts([6]), **SETTINGS, do_sample=False)
    assert torch.equal(outputs[1].sequences[0], plain[0, 6:])


def test_what_was_retained_belongs_to_one_state(pairs):
    """0x06A: a row is dropped after the frontiers have been read; those of the others are read again."""
    target, assistant = pairs["llama"]
    call = {**SETTINGS, **MODES["sampled"], **OUTPUTS, "eos_token_id": None, "assistant_model": assistant}
    sessions = [hf_exactassist.start(target, **prompts(LENGTHS), **call, layout=layout) for layout in LAYOUTS]
    for session in sessions:
        session.step()
        session.step()
        with torch.no_grad():
            session.scorer.make_ready()
        session.drop_rows([1])
    same_successor(*sessions)
    while all([session.step() is not None for session in sessions]):
        same_successor(*sessions)
    same_outputs([session.result() for session in sessions])


@pytest.mark.parametrize("mode", ["greedy", "sampled to an end"])
def test_committed_rows_differ_by_the_frontier_and_by_nothing_else(pairs, mode):
    """0x06C: replay commits the frontier's row too; the first token's round has a complete cache in both."""
    target, assistant = pairs["llama"]
    call = {**SETTINGS, **MODES[mode], "assistant_model": assistant, "num_assistant_tokens": 3}
    _, rounds = side_by_side(lambda layout: hf_exactassist.start(target, **prompts(LENGTHS), **call, layout=layout))
    frontiers = {}
    for number, (replay, retained) in enumerate(rounds):
        for place, row in enumerate(replay.rows):
            kept = replay.tokens[place][:-1]
            assert retained.committed_kv[place] == kept
            assert replay.committed_kv[place] == ((frontiers[row], *kept) if number else kept)
            assert replay.discarded_kv[place] == retained.discarded_kv[place]
            frontiers[row] = replay.tokens[place][-1]


# --- the law ---


@pytest.mark.parametrize("name", ["plain", "eos"])
def test_the_retained_law_is_the_targets(name):
    """0x03, 0x04H."""
    ends = {"eos_token_id": 1, "pad_token_id": 0} if name == "eos" else {}
    target, assistant = hash_pair(4)
    loop = AssistedDecoding(drafter(assistant, 4), ConstantSchedule(2), layout="retained")
    kwargs, inputs = sampling(4, **ends), prompt(4)
    assert total_variation(plain_law(target, inputs, **kwargs), assisted_law(target, inputs, loop, **kwargs)) < 1e-6


@pytest.mark.parametrize("row", [0, 2])
def test_the_retained_law_of_rows_of_a_ragged_batch(row):
    """0x04E, 0x04H: the other rows go on and end meanwhile."""
    target, assistant = hash_pair(3)
    ids = torch.randint(3, (3, 4), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, :3], mask[1, :1] = 0, 0
    loop = AssistedDecoding(drafter(assistant, 3), ConstantSchedule(2), layout="retained")
    kwargs = sampling(4, eos_token_id=1, pad_token_id=0)
    plain = plain_law(target, {"input_ids": ids[row : row + 1], "attention_mask": mask[row : row + 1]}, **kwargs)
    ours = assisted_law(target, {"input_ids": ids, "attention_mask": mask}, loop, row, {row}, **kwargs)
    assert total_variation(pad(plain, 8), pad(ours, 8)) < 1e-6


# --- packed requests ---


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_packed_requests_score_as_if_alone(attention):
    """0x04E: two requests in one row of a real model; without the request term one reads the other."""
    target = tiny()
    target.set_attn_implementation(attention)
    alone = [prompts([length], seed=length)["input_ids"] for length in (5, 3)]
    packed = torch.cat(alone, dim=1)
    positions = torch.cat([torch.arange(ids.shape[1]) for ids in alone])
    requests = torch.tensor([0] * 5 + [1] * 3)

    def logits(visible):
        lowest = torch.finfo(torch.float32).min
        mask = visible if attention == "sdpa" else torch.zeros(visible.shape).masked_fill(~visible, lowest)
        with torch.no_grad():
            return target(packed, attention_mask=mask[None, None], position_ids=positions[None]).logits[0]

    with torch.no_grad():
        expected = torch.cat([target(ids).logits[0] for ids in alone])
    torch.testing.assert_close(
        logits(visibility(positions, positions, None, requests, requests)), expected, rtol=0, atol=1e-5
    )
    leaking = (logits(visibility(positions, positions)) - expected).abs().amax(-1)
    assert (leaking > 1e-2).all()


# --- faults of the loop, found by the loop ---


def as_in(layout, method):
    """A verb of the scorer's, under another layout than the call's."""

    def verb(self, *args):
        with mock.patch.object(self, "layout", layout):
            return method(self, *args)

    return verb


def replayed_though_cached(patch):
    """The frontier is read beforehand, and again with the drafts."""
    known = Scorer.cached.fget

    def cached(self):
        return self.rows.active_lengths() if self.completed else known(self)

    patch.setattr(Scorer, "make_ready", as_in("retained", Scorer.make_ready))
    patch.setattr(Scorer, "score", as_in("replay", Scorer.score))
    patch.setattr(Scorer, "cached", property(cached))


def replayed_and_retained(patch):
    """The frontier's scores come twice, once retained and once with the drafts."""
    patch.setattr("hf_exactassist.scoring.block_inputs", lambda _, frontier, drafts: _beside(frontier, drafts))


def _beside(frontier, drafts):
    return torch.cat([frontier[:, None], drafts], dim=1)


def shifted(patch):
    """Drafts are read and written one place late; all else is right."""
    known, score, inside = Scorer.cached.fget, Scorer.score, []

    def late(self, draft, wanted):
        inside.append(True)
        try:
            return score(self, draft, wanted)
        finally:
            inside.clear()

    patch.setattr(Scorer, "cached", property(lambda self: [column + len(inside) for column in known(self)]))
    patch.setattr(Scorer, "score", late)


def nothing_retained(patch):
    """The cache is not completed: scores of an earlier round, or none, stand for the frontier's."""
    patch.setattr(Scorer, "make_ready", as_in("replay", Scorer.make_ready))


def another_draft_token(place):
    """The target reads another token than was drafted."""

    def apply(patch):
        score = Scorer.score

        def changed(self, draft, wanted):
            tokens = draft.tokens.clone()
            tokens[:, place] = (tokens[:, place] + 1) % 80
            return score(self, replace(draft, tokens=tokens), wanted)

        patch.setattr(Scorer, "score", changed)

    return apply


def another_frontier(patch):
    """The target reads another token than was published last."""
    patch.setattr(Scorer, "_frontier", lambda self: torch.tensor(self.rows.frontiers()) + 1)


def a_row_less(patch):
    """The last row of logits is lost."""
    forward = RowRunner.forward

    def short(self, *args, **kwargs):
        outputs = copy.copy(forward(self, *args, **kwargs))
        outputs.logits = outputs.logits[:, :-1] if outputs.logits.shape[1] > 1 else outputs.logits
        return outputs

    patch.setattr(RowRunner, "forward", short)


FAULTS = {
    "the frontier is replayed though cached": (replayed_though_cached, LAYOUTS, DuplicatedFrontier, "read again"),
    "its scores are retained and replayed": (
        replayed_and_retained,
        ["retained"],
        ShiftedRows,
        "4 rows of scores, got 5",
    ),
    "the cache is not completed": (nothing_retained, ["retained"], MixedLayouts, "retained"),
    "rows are written one place late": (shifted, LAYOUTS, ShiftedRows, "were due"),
    "a row of logits is lost": (a_row_less, LAYOUTS, ShiftedRows, "4 rows of scores, got 3"),
    "the first draft token is another": (another_draft_token(0), LAYOUTS, ForeignRows, "were made from"),
    "the last draft token is another": (another_draft_token(-1), LAYOUTS, ForeignRows, "were made from"),
    "the frontier is another": (another_frontier, LAYOUTS, ForeignRows, "were made from token"),
}


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize(("name", "layout"), [(name, layout) for name in FAULTS for layout in FAULTS[name][1]])
def test_a_fault_is_found_before_anything_is_published(monkeypatch, name, layout, steps):
    """0x04A to 0x04D, 0x06A; without the fault the round is made again and the call ends as it would have."""
    fault, _, error, match = FAULTS[name]
    target = tiny()
    assistant = noisy(target, EVEN_NOISE["llama"])
    call = {**SETTINGS, "do_sample": False, "assistant_model": assistant, "num_assistant_tokens": 3}
    expected = hf_exactassist.generate(target, **prompts(LENGTHS), **call)
    session = hf_exactassist.start(target, **prompts(LENGTHS), **call, layout=layout)
    for _ in range(steps):
        session.step()
    state, text, counters = session.rows.state, session.sequences_so_far(), vars(session.rows.state.stats).copy()
    with monkeypatch.context() as patch:
        fault(patch)
        with pytest.raises(error, match=match) as caught:
            session.step()
    assert isinstance(caught.value, BrokenRound)
    assert (
        session.rows.state is state
        and session.sequences_so_far() == text
        and vars(session.rows.state.stats) == counters
    )
    assert torch.equal(session.result(), expected)
