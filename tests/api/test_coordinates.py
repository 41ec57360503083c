"""What was made in one state is refused in another, by the name of what differs (contract 0x01A, 0x01D, 0x06F)."""

import copy
import dataclasses
import hashlib

import pytest
import torch
from transformers import LogitsProcessorList, TemperatureLogitsWarper

import hf_exactassist
from hf_exactassist import errors
from hf_exactassist.models import identity
from hf_exactassist.state import manifest
from tests.tiny import EVEN_NOISE, noisy, prompts, tiny


LENGTHS = [9, 4, 6]
SETTINGS = {"eos_token_id": [7, 23], "pad_token_id": 0, "max_new_tokens": 24, "num_assistant_tokens": 3}
# always the best token, so that calls that differ in what decides nothing publish the same
TOP = {"do_sample": True, "seed": 5, "top_k": 1}
MODES = {"greedy": {"do_sample": False}, "sampled": {"do_sample": True, "seed": 28}}


@pytest.fixture
def models():
    target = tiny()
    return target, noisy(target, EVEN_NOISE["llama"])


def opened(models, lengths=LENGTHS, **settings):
    return hf_exactassist.start(models[0], **prompts(lengths), assistant_model=models[1], **{**SETTINGS, **settings})


def uninterrupted(models, lengths=LENGTHS, **settings):
    return hf_exactassist.generate(
        models[0], **prompts(lengths), assistant_model=models[1], **{**SETTINGS, **settings}
    )


def ready(session):
    """Brings a session to where a proposal can be made; returns the wanted lengths."""
    session.listeners.settle()
    session.scorer.make_ready()
    return session.wanted(1.0)


def proposed(session):
    wanted = ready(session)
    return session.propose(wanted), wanted


def scored(session):
    proposal, wanted = proposed(session)
    return session.score(proposal, wanted)


def judged(session, verification=None):
    verification = scored(session) if verification is None else verification
    processed = session.process(verification)
    return verification, processed, session.judge(processed, verification.draft)


def snapshot(session):
    return session.coordinate(), session.sequences_so_far(), session.rows.ids.clone(), copy.deepcopy(session.stats)


def same(before, after):
    return all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(before, after, strict=True)
    )


def refused(session, error, call, says=None):
    """The named refusal and no other, which leaves the session as it was."""
    before = snapshot(session)
    with torch.no_grad(), pytest.raises(errors.StaleRound, match=says) as caught:
        call()
    assert type(caught.value) is error, caught.value
    before[2][:] = session.rows.ids  # drafts lie in the scratch columns
    assert same(before, snapshot(session))


# --- made earlier in the same call


@pytest.mark.parametrize("layout", ["replay", "retained"])
@pytest.mark.parametrize("mode", MODES)
@torch.no_grad()
def test_what_was_made_before_a_step_is_refused_after_it(models, mode, layout):
    expected = uninterrupted(models, **MODES[mode])
    session = opened(models, layout=layout, **MODES[mode])
    session.step()
    old_proposal, wanted = proposed(session)
    old_verification = scored(session)
    old_round = judged(session)
    old_commit = session.stage(*judged(session))
    session.step()
    refused(session, errors.GenerationChanged, lambda: session.score(old_proposal, wanted), "^This proposal belongs")
    late = (old_verification, *old_round[1:])
    refused(session, errors.GenerationChanged, lambda: session.stage(*late), "^This verification belongs")
    # the round was published meanwhile under another record of the same content: it is acknowledged, not added
    before = session.sequences_so_far()
    assert session.publish(old_commit) is False and session.sequences_so_far() == before
    session.step()
    refused(session, errors.GenerationChanged, lambda: session.publish(old_commit), r"^Round \S+/1 belongs")
    assert torch.equal(session.result(), expected)


@pytest.mark.parametrize("layout", ["replay", "retained"])
@torch.no_grad()
def test_what_was_made_for_other_rows_is_refused(models, layout):
    session = opened(models, layout=layout, do_sample=False)
    session.step()
    proposal, wanted = proposed(session)
    work = judged(session)
    commit = session.stage(*work)
    session.drop_rows([1])
    for call in (
        lambda: session.score(proposal, wanted),
        lambda: session.stage(*work),
        lambda: session.publish(commit),
    ):
        refused(session, errors.GenerationChanged, call)
    # with the generation set right, the rows are what differs
    generation = session.coordinate().generation
    for bound in (proposal, work[0], commit):
        forged = dataclasses.replace(bound, coordinate=dataclasses.replace(bound.coordinate, generation=generation))
        call = {
            "Proposal": lambda forged=forged: session.score(forged, wanted),
            "Verification": lambda forged=forged: session.stage(forged, *work[1:]),
            "RoundCommit": lambda forged=forged: session.publish(forged),
        }[type(bound).__name__]
        refused(session, errors.RowsChanged, call, "round.rows")
    expected = uninterrupted(models, do_sample=False)
    output = session.result()
    assert all(torch.equal(output[row], expected[row, : output.shape[1]]) for row in (0, 2))


@torch.no_grad()
def test_under_the_retained_layout_the_frontier_read_is_another_state(models):
    """Contract 0x01A: the cache's length is part of the coordinate."""
    session = opened(models, layout="retained", **MODES["sampled"])
    session.step()
    early, wanted = session.propose(session.wanted(1.0)), session.wanted(1.0)
    before = session.coordinate()
    session.scorer.make_ready()
    after = session.coordinate()
    assert [row.cached for row in before.rows] == [row.length - 1 for row in before.rows]
    assert [row.cached for row in after.rows] == [row.length for row in after.rows]
    refused(session, errors.CacheLengthChanged, lambda: session.score(early, wanted), "round.rows.0.cached is 10 now")
    assert torch.equal(session.result(), uninterrupted(models, **MODES["sampled"]))


# --- made in another call


def other_weights(models):
    return models[0], noisy(models[1], 0.001, seed=9)


def other_target(models):
    # unseen by the text: a bias that moves every logit alike
    target = copy.deepcopy(models[0])
    with torch.no_grad():
        target.model.layers[0].mlp.up_proj.weight[0, 0] += 1e-6
    return target, models[1]


STRANGERS = {
    "seed": (errors.StreamsChanged, {"seed": 6}),
    "row_ids": (errors.StreamsChanged, {"row_ids": [0, 1, 5]}),
    "layout": (errors.LayoutChanged, {"layout": "retained"}),
    "temperature": (errors.ProcessorsChanged, {"temperature": 0.5}),
    "one more processor": (errors.ProcessorsChanged, {"top_p": 0.9}),
    "schedule": (errors.ScheduleChanged, {"num_assistant_tokens_schedule": "heuristic"}),
    "draft length": (errors.ScheduleChanged, {"num_assistant_tokens": 2}),
    "threshold": (errors.DrafterChanged, {"assistant_confidence_threshold": 1e-9}),
    "eos": (errors.StoppingChanged, {"eos_token_id": [7, 24]}),
    "length": (errors.StoppingChanged, {"max_new_tokens": 30}),
    "coupling": (errors.CouplingChanged, {"coupling": "shared_noise"}),
    "prompt": (errors.PrefixChanged, {"prompt": 1}),
    "shorter prompt": (errors.PrefixChanged, {"lengths": [9, 4, 5]}),
    "fewer rows": (errors.RowsChanged, {"lengths": [9, 4]}),
    "assistant": (errors.ModelChanged, {"models": other_weights}),
    "target": (errors.ModelChanged, {"models": other_target}),
    "assistant's dtype": (
        errors.DtypeChanged,
        {"models": lambda models: (models[0], copy.deepcopy(models[1]).double())},
    ),
    "target's revision": (errors.RevisionChanged, {"models": "revision"}),
    "assistant's attention": (errors.AttentionChanged, {"models": "attention"}),
}


def stranger(models, kind):
    """A session that differs in one thing, after the first step like ours."""
    settings = {**TOP, **STRANGERS[kind][1]}
    change, lengths = settings.pop("models", None), settings.pop("lengths", LENGTHS)
    if change == "revision":
        target = copy.deepcopy(models[0])
        target.config._commit_hash = "0a1b2c3d"
        models = target, models[1]
    elif change == "attention":
        assistant = copy.deepcopy(models[1])
        assistant.set_attn_implementation("eager")
        models = models[0], assistant
    elif change is not None:
        models = change(models)
    inputs = prompts(lengths, seed=settings.pop("prompt", 0))
    if lengths == [9, 4]:
        # the same prompts without the last row
        inputs = {name: tensor[:2] for name, tensor in prompts(LENGTHS).items()}
    session = hf_exactassist.start(models[0], **inputs, assistant_model=models[1], **{**SETTINGS, **settings})
    session.step()
    return session


@pytest.mark.parametrize("kind", STRANGERS)
@torch.no_grad()
def test_what_another_call_made_is_refused_by_the_name_of_the_difference(models, kind):
    """Contract 0x01D: each has the right shapes, and means something else."""
    expected = uninterrupted(models, **TOP)
    ours, theirs = opened(models, **TOP), stranger(models, kind)
    ours.step()
    proposal, wanted = proposed(theirs)
    foreign = judged(theirs)
    commit = theirs.stage(*foreign)
    wanted = (wanted * 2)[: len(LENGTHS)]
    ready(ours)
    error = STRANGERS[kind][0]
    refused(ours, error, lambda: ours.score(proposal, wanted), "^This proposal belongs to another state")
    refused(ours, error, lambda: ours.stage(*foreign), "^This verification belongs to another state")
    refused(ours, error, lambda: ours.publish(commit), r"^Round \S+ belongs to another state")
    assert torch.equal(ours.result(), expected)


@torch.no_grad()
def test_a_call_with_the_same_coordinate_may_be_scored_here_and_published_only_there(models):
    """Equal digests mean the same thing (0x01A); a commit still belongs to one call."""
    ours, theirs = opened(models, **TOP), opened(models, **TOP)
    ours.step()
    theirs.step()
    assert ours.coordinate() == theirs.coordinate()
    proposal, wanted = proposed(theirs)
    ready(ours)
    commit = theirs.stage(*judged(theirs))
    with pytest.raises(errors.InvalidCommit, match="belongs to another call"):
        ours.publish(commit)
    # proposals laid their drafts into the text they were made for
    ours.rows.lay_out(
        [row[:count] for row, count in zip(proposal.draft.tokens.tolist(), proposal.draft.lengths, strict=True)]
    )
    mine = ours.stage(*judged(ours, ours.score(proposal, wanted)))
    assert (mine.tokens, mine.accepted, mine.spent_after) == (commit.tokens, commit.accepted, commit.spent_after)
    assert ours.publish(mine) is True
    assert torch.equal(ours.result(), uninterrupted(models, **TOP))


# --- a model that changes during a call


def weights(model):
    before = model.lm_head.weight.detach().clone()
    with torch.no_grad():
        model.lm_head.weight.mul_(1.01)

    def back():
        with torch.no_grad():
            model.lm_head.weight.copy_(before)

    return back


def bfloat16(model):
    before = copy.deepcopy(model.state_dict())
    model.bfloat16()

    def back():
        model.float()
        model.load_state_dict(before)

    return back


def attention(model):
    model.set_attn_implementation("eager")
    return lambda: model.set_attn_implementation("sdpa")


def training(model):
    model.train()
    return model.eval


def revision(model):
    model.config._commit_hash = "0a1b"
    return lambda: setattr(model.config, "_commit_hash", None)


def arithmetic(model):
    torch.set_float32_matmul_precision("high")
    return lambda: torch.set_float32_matmul_precision("highest")


CHANGES = {
    weights: errors.ModelChanged,
    bfloat16: errors.DtypeChanged,
    attention: errors.AttentionChanged,
    training: errors.ModelChanged,
    revision: errors.RevisionChanged,
    arithmetic: errors.DtypeChanged,
}


@pytest.mark.parametrize("layout", ["replay", "retained"])
@pytest.mark.parametrize("role", ["target", "drafter"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("mode", MODES)
def test_a_changed_model_refuses_the_next_step_until_it_is_put_back(models, mode, change, role, layout):
    """Contract 0x01A, 0x06F: before anything is read, drawn or published."""
    expected = uninterrupted(models, **MODES[mode])
    session = opened(models, layout=layout, **MODES[mode])
    for _ in range(2):
        session.step()
    back = change(models[role == "drafter"])
    try:
        forwards = session.scorer.target.forwards, session.drafter.forwards
        where = "call.target" if change is arithmetic or role == "target" else "call.drafter.model"
        for _ in range(2):
            refused(session, CHANGES[change], session.step, f"^This call belongs to another state: {where}")
        assert (session.scorer.target.forwards, session.drafter.forwards) == forwards
    finally:
        back()
    if change in (weights, bfloat16):
        # nobody knows any more whether the values are the same
        refused(session, errors.ModelChanged, session.step, "start a new call")
    else:
        assert torch.equal(session.result(), expected)


def test_a_change_that_the_sketch_of_the_weights_misses_is_refused_too(models):
    session = opened(models, do_sample=False)
    session.step()
    described = identity.describe(models[0])
    with torch.no_grad():
        models[0].model.layers[0].mlp.up_proj.weight[1:3, 1:3] += 1.0
    assert identity.describe(models[0]) == described
    for _ in range(2):
        refused(session, errors.ModelChanged, session.step, "start a new call")


def test_rounding_there_and_back_is_a_change(models):
    """No dtype differs in the end, and no value is as it was."""
    session = opened(models, do_sample=False)
    session.step()
    before = copy.deepcopy(models[0].state_dict())
    models[0].bfloat16().float()
    refused(session, errors.ModelChanged, session.step, "call.target.weights")
    models[0].load_state_dict(before)
    refused(session, errors.ModelChanged, session.step, "start a new call")


def test_autocast_during_a_call_is_a_change(models):
    session = opened(models, do_sample=False)
    session.step()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        refused(
            session, errors.DtypeChanged, session.step, 'call.target.autocast is "torch.bfloat16" now and was null'
        )
    assert torch.equal(session.result(), uninterrupted(models, do_sample=False))


def test_a_changed_model_is_refused_before_the_first_step_too(models):
    session = opened(models, do_sample=False)
    back = weights(models[0])
    refused(session, errors.ModelChanged, session.step)
    back()


# --- digests


def digests(session):
    found = [session.manifest()["digest"]]
    while session.step() is not None:
        found.append(session.manifest()["digest"])
    return found


@pytest.mark.parametrize("layout", ["replay", "retained"])
@pytest.mark.parametrize("mode", MODES)
def test_equal_calls_have_equal_digests_at_every_round(models, mode, layout):
    """Contract 0x01A; also of copies of the models."""
    first = digests(opened(models, layout=layout, **MODES[mode]))
    second = digests(opened(copy.deepcopy(models), layout=layout, **MODES[mode]))
    assert first == second and len(set(first)) == len(first) > 3
    other = digests(opened(models, layout=layout, max_new_tokens=25, **MODES[mode]))
    assert not set(first) & set(other)


def places(session):
    """Of every row in every round: prefix, position and used numbers, by identity and position."""
    found, identities, length = {}, session.judging.identities, session.rows.prompt_length
    while not session.finished:
        session.step()
        for row in session.coordinate().rows:
            padding = length - session.rows.prompt_tokens[row.row]
            text = session.rows.ids[row.row, padding : length + len(session.sequences_so_far()[row.row])]
            assert row.prefix == hashlib.sha256(text.numpy().astype("<i8").tobytes()).hexdigest()
            assert row.position == len(text)
            found[identities[row.row], row.position] = (row.prefix, row.spent)
    return found


def test_a_rows_part_of_the_coordinate_does_not_know_its_company(models):
    """Padding is left out of the prefix; positions count tokens."""
    settings = {"do_sample": True, "seed": 28, "max_new_tokens": 16}
    batch, inputs = prompts(LENGTHS), []
    for row, length in enumerate(LENGTHS):
        inputs.append({name: tensor[row : row + 1, 9 - length :] for name, tensor in batch.items()})
    together = places(opened(models, row_ids=[3, 1, 8], **settings))
    alone = {}
    for row, number in enumerate([3, 1, 8]):
        start = {**inputs[row], "assistant_model": models[1], **SETTINGS, **settings}
        session = hf_exactassist.start(models[0], row_ids=[number], **start)
        first = session.coordinate().rows[0]
        whole = opened(models, row_ids=[3, 1, 8], **settings).coordinate().rows[row]
        assert (first.prefix, first.position, first.spent) == (whole.prefix, whole.position, whole.spent)
        assert (first.length, whole.length) == (LENGTHS[row], 9)
        alone |= places(session)
    assert together == alone and len(together) > 9


def test_every_token_of_a_prefix_counts(models):
    base = opened(models, do_sample=False).coordinate()
    for place in range(4):
        inputs = prompts(LENGTHS)
        inputs["input_ids"][1, -1 - place] += 1
        session = hf_exactassist.start(models[0], **inputs, assistant_model=models[1], **SETTINGS, do_sample=False)
        changed = [a.prefix != b.prefix for a, b in zip(base.rows, session.coordinate().rows, strict=True)]
        assert changed == [False, True, False]
    # what stands under padding is no token of the prompt
    inputs = prompts(LENGTHS)
    inputs["input_ids"][1, 0] = 5
    session = hf_exactassist.start(models[0], **inputs, assistant_model=models[1], **SETTINGS, do_sample=False)
    assert session.coordinate() == base


def test_layouts_differ_in_name_and_in_the_cache(models):
    """Contract 0x01B: `cached` is one less under replay, the rest of a row agrees."""
    replay, retained = (opened(models, layout=layout, **MODES["sampled"]) for layout in ("replay", "retained"))
    for session in (replay, retained):
        session.step()
        session.step()
        session.scorer.make_ready()
    ours, theirs = replay.coordinate(), retained.coordinate()
    assert [row.cached for row in ours.rows] == [row.length - 1 for row in ours.rows]
    assert [row.cached for row in theirs.rows] == [row.length for row in theirs.rows]
    assert [dataclasses.replace(row, cached=0) for row in ours.rows] == [
        dataclasses.replace(row, cached=0) for row in theirs.rows
    ]
    assert ours.call.digest == theirs.call.digest and (ours.layout, theirs.layout) == ("replay", "retained")
    with pytest.raises(errors.LayoutChanged):
        manifest.require_current(ours, theirs, "This")


def test_processors_count_in_order_and_with_their_settings(models):
    """Contract 0x06F: the same processors, which means the same list."""
    warpers = [TemperatureLogitsWarper(0.7), TemperatureLogitsWarper(0.8)]
    lists = [warpers, warpers[::-1], warpers[:1], [*warpers, TemperatureLogitsWarper(0.7)]]
    calls = {
        opened(models, do_sample=False, logits_processor=LogitsProcessorList(one)).coordinate().call.digest
        for one in lists
    }
    assert len(calls) == len(lists)


def test_prompts_given_as_embeddings_count(models):
    inputs = prompts([5])
    embeds = models[0].get_input_embeddings()(inputs["input_ids"]).detach()
    found = set()
    for change in (0.0, 0.0, 1e-3):
        session = hf_exactassist.start(
            models[0], inputs_embeds=embeds + change, prompt_lookup_num_tokens=2, max_new_tokens=4, pad_token_id=0
        )
        found.add(session.manifest()["call"]["prompt"]["embeddings"])
        session.result()
    assert len(found) == 2 and None not in found
