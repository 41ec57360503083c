"""A call stepped from outside: a round that fails changes nothing and is made again (contract 0x06A, 0x06E)."""

import copy
import gc
import os
import random
import signal

import pytest
import torch
from transformers import DynamicCache, GenerationConfig, LogitsProcessor, StoppingCriteria

import hf_exactassist
from hf_exactassist.errors import GenerationChanged
from hf_exactassist.models.admission import admit
from hf_exactassist.session import Session
from hf_exactassist.state import cache as cache_module
from hf_exactassist.state import transaction
from hf_exactassist.state.rows import Rows
from hf_exactassist.state.stopping import StoppingRules
from tests.api.helpers import CACHE, RecordingStreamer
from tests.exactness.remembering import Automaton, Counter, Patience, Saving
from tests.tiny import EVEN_NOISE, noisy, prompts, tiny


SETTINGS = {"eos_token_id": [7, 23], "pad_token_id": 0, "max_new_tokens": 24, "num_assistant_tokens": 3}
MODES = {"greedy": {"do_sample": False}, "sampled": {"do_sample": True, "seed": 28}}
LENGTHS = [[6], [9, 4, 6]]
LAYOUTS = ["replay", "retained"]


@pytest.fixture
def models():
    target = tiny()
    return target, noisy(target, EVEN_NOISE["llama"])


def opened(models, lengths, **settings):
    return hf_exactassist.start(models[0], **prompts(lengths), assistant_model=models[1], **{**SETTINGS, **settings})


def uninterrupted(models, lengths, **settings):
    return hf_exactassist.generate(
        models[0], **prompts(lengths), assistant_model=models[1], **{**SETTINGS, **settings}
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("lengths", LENGTHS)
def test_steps_add_up_to_what_generate_returns(models, lengths, mode):
    session, published = opened(models, lengths, **MODES[mode]), [[] for _ in lengths]
    while (commit := session.step()) is not None:
        for row, tokens in zip(commit.rows, commit.tokens, strict=True):
            published[row] += tokens
    expected = uninterrupted(models, lengths, **MODES[mode])
    assert session.finished and torch.equal(session.result(), expected)
    new = expected[:, max(lengths) :].tolist()
    assert all(row[: len(tokens)] == tokens for row, tokens in zip(new, published, strict=True))
    assert session.step() is None and session.result() is session.result()


@pytest.mark.parametrize("lengths", LENGTHS)
def test_a_cancelled_iteration_loses_and_doubles_nothing(models, lengths):
    session, seen = opened(models, lengths, do_sample=False), [[] for _ in lengths]
    for pause in (1, 2, 5, 100):
        for count, (row, token) in enumerate(session):
            seen[row].append(token)
            if count + 1 == pause:
                break
    expected = uninterrupted(models, lengths, do_sample=False)[:, max(lengths) :].tolist()
    assert all(row[: len(tokens)] == tokens for row, tokens in zip(expected, seen, strict=True))
    assert sum(map(len, seen)) == session.stats.published


class Broken(Exception):
    pass


def authoritative(session):
    """What a call has published, and the keys and values behind it, by value."""
    state, scorer = session.rows.state, session.scorer
    texts = [session.rows.ids[row, :length].tolist() for row, length in enumerate(state.lengths)]
    kept = {}
    for row in range(len(texts)) if state.generation else ():
        if row in scorer.held:
            cache, i, slots = (
                scorer.target.cache,
                scorer.held.index(row),
                slice(0, state.lengths[row] - 1 + scorer.shift),
            )
            states = [(layer.keys[i, :, slots], layer.values[i, :, slots]) for layer in cache.layers]
            kept[row] = (cache.tokens[i, slots].tolist(), values(states))
        elif scorer.keeps_ended:
            ended = scorer._ended[row]
            kept[row] = (ended.tokens.tolist(), values(ended.layers))
    return {
        "state": (state.generation, state.lengths, state.stops, state.active, state.spent, state.last),
        "prefixes": [digest.hexdigest() for digest in state.hashes],
        "stats": vars(state.stats),
        "texts": texts,
        "cache": kept,
        "processors": state.memory.digest,
        "streamed": [] if session.streamer is None else [list(map(str, session.streamer.puts))],
    }


def values(states):
    return [part.contiguous().numpy().tobytes() for pair in states for part in pair]


class Armed:
    """Raises at its `number`-th event."""

    def __init__(self, error, number):
        self.error, self.number, self.count, self.on = error, number, 0, True

    def __call__(self, *args, **kwargs):
        if self.on:
            self.count += 1
            if self.count == self.number:
                raise self.error


def before(monkeypatch, owner, name, event):
    original = getattr(owner, name)

    def failing(*args, **kwargs):
        event()
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, failing)


def after(monkeypatch, owner, name, event):
    original = getattr(owner, name)

    def failing(*args, **kwargs):
        result = original(*args, **kwargs)
        event()
        return result

    monkeypatch.setattr(owner, name, failing)


# the five points of contract 0x06E, and the others of a round
STAGES = {
    "after drafting": (before, Session, "score"),
    "after target verification": (before, Session, "process"),
    "after processing": (before, Session, "judge"),
    "after the acceptance decision": (before, Session, "stage"),
    "after stopping": (after, StoppingRules, "cut"),
    "after staging K/V rows": (after, transaction, "check_block"),
    "after staging output and processor state": (after, Session, "stage"),
    "after validation": (after, transaction, "validate"),
    "immediately before publication": (before, Rows, "_clear"),
}
MODELS = ("target forward", "draft forward")


def armed(monkeypatch, where, models, error, number):
    """Not yet: a session knows the hooks it began with, and the probe's forwards do not count."""
    event = Armed(error, number)
    event.on = False
    if where in MODELS:
        models[where == "draft forward"].model.layers[1].register_forward_pre_hook(event)
        admit(models[where == "draft forward"])
    else:
        how, owner, name = STAGES[where]
        how(monkeypatch, owner, name, event)
    return event


def finish(session, error):
    """Steps to the end; every failure must leave everything as it was."""
    failures = 0
    while not session.finished:
        start = authoritative(session)
        try:
            session.step()
        except error:
            failures += 1
            assert authoritative(session) == start
        else:
            assert session.rows.state.generation == start["state"][0] + 1
    return failures


EVERYTHING = {
    "return_dict_in_generate": True,
    "output_scores": True,
    "output_logits": True,
    "output_hidden_states": True,
    "output_attentions": True,
}


def assert_equal_outputs(ours, theirs):
    assert torch.equal(ours.sequences, theirs.sequences)
    ignored = ("target_forwards", "draft_forwards", "seconds", "costs", "timed")
    counts = [{k: v for k, v in vars(o.assist_stats).items() if k not in ignored} for o in (ours, theirs)]
    assert counts[0] == counts[1]
    for name in ("scores", "logits"):
        assert len(ours[name]) == len(theirs[name])
        assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(ours[name], theirs[name], strict=True))
    for name in ("hidden_states", "attentions"):
        for a, b in zip(ours[name], theirs[name], strict=True):
            assert [part.shape for part in a] == [part.shape for part in b]
            assert all(torch.allclose(x, y, atol=1e-4) for x, y in zip(a, b, strict=True))
    for a, b in zip(ours[CACHE].layers, theirs[CACHE].layers, strict=True):
        assert torch.allclose(a.keys, b.keys, atol=1e-4) and torch.allclose(a.values, b.values, atol=1e-4)


@pytest.mark.parametrize(
    ("error", "number"), [(Broken, 1), (Broken, 2), (Broken, 6), (KeyboardInterrupt, 2), (MemoryError, 6)]
)
@pytest.mark.parametrize("where", [*MODELS, *STAGES])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_round_that_failed_is_made_again(monkeypatch, models, layout, lengths, where, number, error):
    """0x06A, 0x06E: nothing has changed after a failure, and nothing differs in the end."""
    for model in models:
        model.set_attn_implementation("eager")
    mode = {**MODES["sampled"], **EVERYTHING}
    expected = uninterrupted(models, lengths, **mode)
    streamer = RecordingStreamer()
    event = armed(monkeypatch, where, models, error, number)
    session = opened(models, lengths, **mode, layout=layout, streamer=streamer if len(lengths) == 1 else None)
    event.on = True
    assert finish(session, error) == 1
    assert_equal_outputs(session.result(), expected)


class RaisesOnce:
    """A processor or criterion whose answer depends on the prefix alone, but which fails where it is told to."""

    def __call__(self, input_ids, scores):
        if os.environ.get("RAISE_AT") == str(input_ids.shape[1]):
            raise Broken
        return self.answer(input_ids, scores)


class RaisingProcessor(RaisesOnce, LogitsProcessor):
    def answer(self, input_ids, scores):
        return scores.roll(1, dims=-1)


class RaisingCriterion(RaisesOnce, StoppingCriteria):
    def answer(self, input_ids, scores):
        return torch.zeros(len(input_ids), dtype=torch.bool)


@pytest.mark.parametrize("kind", [RaisingProcessor, RaisingCriterion])
@pytest.mark.parametrize("place", [0, 1, 4, 9])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_code_of_the_callers_that_fails_loses_nothing(monkeypatch, models, layout, lengths, place, kind):
    """0x06E: it fails in the middle of a round, at some prefix, as often as it is asked there."""
    name = "logits_processor" if kind is RaisingProcessor else "stopping_criteria"
    mode = {**MODES["sampled"], **EVERYTHING, name: [kind()], "output_attentions": False}
    expected = uninterrupted(models, lengths, **mode)
    session = opened(models, lengths, layout=layout, **mode)
    monkeypatch.setenv("RAISE_AT", str(max(lengths) + place + (kind is RaisingCriterion)))
    failures = 0
    while not session.finished and failures < 3:
        start = authoritative(session)
        try:
            session.step()
        except Broken:
            failures += 1
            assert authoritative(session) == start
    assert failures == 3
    monkeypatch.delenv("RAISE_AT")
    output = session.result()
    assert torch.equal(output.sequences, expected.sequences)
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(output.scores, expected.scores, strict=True))


def remembering():
    return {"logits_processor": [Counter(), Automaton(20)], "stopping_criteria": [Patience(14)]}


def recollections(given):
    return [vars(part) for parts in given.values() for part in parts]


@pytest.mark.parametrize(("error", "number"), [(Broken, 1), (Broken, 4), (KeyboardInterrupt, 2)])
@pytest.mark.parametrize("where", [*MODELS, *STAGES])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_what_remembers_forgets_a_failed_round(monkeypatch, models, lengths, where, number, error):
    """0x06D, 0x06E: in the end it has been called as if nothing had failed, and after each failure it can go on."""
    theirs, ours, mode = remembering(), remembering(), {**MODES["sampled"], "return_dict_in_generate": True}
    expected = uninterrupted(models, lengths, **mode, **theirs)
    event = armed(monkeypatch, where, models, error, number)
    session = opened(models, lengths, **mode, **ours)
    event.on = True
    assert finish(session, error) == 1
    assert torch.equal(session.result().sequences, expected.sequences)
    assert recollections(ours) == recollections(theirs)


@pytest.mark.parametrize("kind", [Saving, Patience])
@pytest.mark.parametrize("number", [1, 2, 7])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_what_remembers_may_fail_itself(models, lengths, number, kind):
    """Half way through a round, after calls that it has already counted."""
    event = Armed(Broken, number)
    event.on = False

    class Failing(kind):
        def __call__(self, *args, **kwargs):
            answer = super().__call__(*args, **kwargs)
            event()
            return answer

    def given():
        own = Failing(14) if kind is Patience else Failing()
        return {"stopping_criteria" if kind is Patience else "logits_processor": [own]}

    theirs, ours = given(), given()
    mode = {**MODES["sampled"], "eos_token_id": None, "return_dict_in_generate": True}
    expected = uninterrupted(models, lengths, **mode, **theirs)
    session = opened(models, lengths, **mode, **ours)
    event.on = True
    assert finish(session, Broken) == 1
    assert torch.equal(session.result().sequences, expected.sequences)
    assert recollections(ours) == recollections(theirs)


@pytest.mark.parametrize("lengths", LENGTHS)
def test_each_of_several_attempts_carries_its_own_memory(models, lengths):
    """0x06A: the attempt that is published says what is remembered, whichever was made last."""
    theirs, ours = remembering(), remembering()
    expected = uninterrupted(models, lengths, **MODES["greedy"], **theirs)
    session = opened(models, lengths, **MODES["greedy"], **ours)
    session.step()
    while not session.finished:
        short = session.round([0] * len(session.rows.active))
        session.round(session.wanted(1.0))
        assert session.publish(short)
    assert torch.equal(session.result(), expected)
    assert recollections(ours) == recollections(theirs)


@pytest.mark.parametrize("lengths", LENGTHS)
def test_rounds_say_what_processors_remember_before_and_after(models, lengths):
    """0x06D, 0x06E: a chain of hashes; without memory, one and the same."""
    session, commits = opened(models, lengths, **MODES["greedy"], **remembering()), []
    while (commit := session.step()) is not None:
        commits.append(commit)
    hashes = [commits[0].processors_before, *(commit.processors_after for commit in commits)]
    assert [commit.processors_before for commit in commits] == hashes[:-1]
    assert len(set(hashes)) == len(hashes) > 3
    again = opened(models, lengths, **MODES["greedy"], **remembering())
    assert [commit.processors_after for commit in iter(again.step, None)] == hashes[1:]
    plain = opened(models, lengths, **MODES["greedy"])
    assert len({commit.processors_after for commit in iter(plain.step, None)}) == 1


def test_an_abandoned_session_has_ended(models):
    given = remembering()
    session = opened(models, [6], **MODES["greedy"], **given)
    session.step()
    session.step()
    session.round(session.wanted(1.0))
    session.abandon()
    session.abandon()
    for verb in (session.step, session.result, lambda: list(session)):
        with pytest.raises(hf_exactassist.SessionEnded, match="open a new one"):
            verb()
    # what was called for a round that nobody published is forgotten
    assert len(given["logits_processor"][0].shown) == session.stats.published


def test_a_session_is_stepped_from_one_place_at_a_time(models):
    """A callback inside a step, and a second thread, are told so and change nothing."""
    refused = []

    class Meddling(RecordingStreamer):
        def put(self, value):
            super().put(value)
            if self.puts[1:]:
                with pytest.raises(hf_exactassist.SessionEnded, match="from one thread"):
                    session.step()
                refused.append(1)

    session = opened(models, [6], **MODES["greedy"], streamer=Meddling())
    assert torch.equal(session.result(), uninterrupted(models, [6], **MODES["greedy"]))
    assert refused


@pytest.mark.parametrize("number", [2, 3, 6])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_streamer_that_failed_is_not_given_a_token_twice(models, layout, number):
    """It is told after publication: the token it failed on is lost to it and to nobody else."""
    expected, event = uninterrupted(models, [6], do_sample=False, eos_token_id=None), Armed(Broken, number)

    class Failing(RecordingStreamer):
        def put(self, value):
            event()
            super().put(value)

    streamer = Failing()
    session, failures = opened(models, [6], do_sample=False, eos_token_id=None, streamer=streamer, layout=layout), 0
    while not session.finished:
        generation = session.rows.state.generation
        try:
            session.step()
        except Broken:
            failures += 1
        assert session.rows.state.generation == generation + 1
    assert failures == 1 and torch.equal(session.result(), expected)
    assert len(streamer.puts) == expected.shape[1] - 6 + 1 - 1 and streamer.ended == 1


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("name", ["drafter", "schedule"])
def test_whoever_learns_of_a_round_may_fail_without_losing_it(models, name, number):
    """0x06E: after publication there is no way back; the round is acknowledged, and the listener not told again."""
    expected = uninterrupted(models, [9, 4, 6], **MODES["sampled"])
    session, seen = opened(models, [9, 4, 6], **MODES["sampled"]), []
    listener, event = getattr(session, name), Armed(Broken, number)
    original = listener.observe

    def observe(*told):
        seen.append(told)
        event()
        return original(*told)

    listener.observe = observe
    failures, commits = 0, []
    while not session.finished:
        generation = session.rows.state.generation
        try:
            session.step()
        except Broken:
            failures += 1
        assert session.rows.state.generation == generation + 1
        commits.append(session.rows.state.last)
    assert failures == 1 and torch.equal(session.result(), expected)
    if name == "drafter":
        assert [commit for (commit,) in seen] == commits
    else:
        outcomes = [zip(commit.rows, commit.drafted, commit.accepted, strict=True) for commit in commits]
        assert seen == [outcome for of_a_round in outcomes for outcome in of_a_round]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("number", range(1, 10))
def test_rows_are_taken_out_of_the_caches_even_if_that_is_interrupted(monkeypatch, models, layout, number):
    """0x06E: a cache half of whose layers have been cut is finished by the next round."""
    mode = {**MODES["sampled"], "return_dict_in_generate": True}
    expected = uninterrupted(models, [9, 4, 6], **mode)
    session, failures = opened(models, [9, 4, 6], layout=layout, **mode), 0
    event, original = Armed(Broken, number), cache_module.only_rows

    def only_rows(*args):
        event()
        return original(*args)

    monkeypatch.setattr(cache_module, "only_rows", only_rows)
    monkeypatch.setattr("hf_exactassist.models.runner.only_rows", only_rows)
    while not session.finished:
        texts = session.sequences_so_far()
        try:
            session.step()
        except Broken:
            failures += 1
            assert session.sequences_so_far() == texts
    output = session.result()
    assert failures == 1 and torch.equal(output.sequences, expected.sequences)
    assert output.assist_stats.accepted_by_position == expected.assist_stats.accepted_by_position
    for ours, theirs in zip(output[CACHE].layers, expected[CACHE].layers, strict=True):
        assert torch.allclose(ours.keys, theirs.keys, atol=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("lengths", LENGTHS)
def test_publishing_twice_adds_nothing(models, lengths, layout):
    """0x06E: the round published last is acknowledged; one published before it is refused by name."""
    expected = uninterrupted(models, lengths, **MODES["sampled"])
    session, commits = opened(models, lengths, layout=layout, **MODES["sampled"]), []
    while (commit := session.step()) is not None:
        state = authoritative(session)
        assert session.publish(commit) is False and session.publish(copy.deepcopy(commit)) is False
        for earlier in commits:
            with pytest.raises(GenerationChanged, match="belongs to another state"):
                session.publish(earlier)
        assert authoritative(session) == state
        commits.append(commit)
    assert [c.expected_generation for c in commits] == list(range(len(commits)))
    assert len({c.round_id for c in commits}) == len(commits)
    assert torch.equal(session.result(), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_of_two_attempts_at_a_round_one_is_published(models, layout):
    """0x06E: a generation is taken once, whichever attempt comes first; both were made with the same numbers."""
    session = opened(models, [9, 4, 6], layout=layout, **MODES["sampled"])
    session.step()
    longer, shorter = session.round([3, 3, 3]), session.round([1, 1, 1])
    starts = zip(longer.tokens, shorter.tokens, strict=True)
    assert all(long[: len(short)][:1] == short[:1] for long, short in starts)
    assert session.publish(longer) is True
    with pytest.raises(GenerationChanged):
        session.publish(shorter)
    texts = session.sequences_so_far()
    assert [text[1:] for text in texts] == [list(tokens) for tokens in longer.tokens]
    session.result()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs interval timers")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("lengths", LENGTHS)
def test_interrupts_at_any_moment(models, lengths, layout):
    """Ctrl-C comes between any two instructions, inside publication too."""
    mode = {**MODES["sampled"], **EVERYTHING, "output_attentions": False}
    expected, random_ = uninterrupted(models, lengths, **mode), random.Random(0)

    def interrupt(*_):
        raise KeyboardInterrupt

    previous, interrupts = signal.signal(signal.SIGALRM, interrupt), 0
    try:
        for _ in range(100):
            session = opened(models, lengths, layout=layout, **mode)
            while not session.finished:
                try:
                    signal.setitimer(signal.ITIMER_REAL, random_.uniform(1e-5, 8e-3))
                    session.step()
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except KeyboardInterrupt:
                    interrupts += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert_equal_texts(session.result(), expected)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert interrupts > 100


def assert_equal_texts(ours, theirs):
    assert torch.equal(ours.sequences, theirs.sequences)
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(ours.scores, theirs.scores, strict=True))
    for a, b in zip(ours.hidden_states, theirs.hidden_states, strict=True):
        assert all(torch.allclose(x, y, atol=1e-4) for x, y in zip(a, b, strict=True))
    for a, b in zip(ours[CACHE].layers, theirs[CACHE].layers, strict=True):
        assert torch.allclose(a.keys, b.keys, atol=1e-4) and torch.allclose(a.values, b.values, atol=1e-4)


@pytest.mark.parametrize("lengths", LENGTHS)
def test_without_memory_drafts_get_shorter(monkeypatch, models, lengths):
    """A round of more than two columns finds no memory; the text is the same, whatever is drafted."""
    mode = {"do_sample": True, "coupling": "shared_noise", "seed": 3, "return_dict_in_generate": True}
    expected, widths = uninterrupted(models, lengths, **mode), []
    original = Session.score

    def score(self, proposal, wanted):
        widths.append(proposal.draft.width + 1)
        if proposal.draft.width + 1 > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return original(self, proposal, wanted)

    monkeypatch.setattr(Session, "score", score)
    output = opened(models, lengths, **mode).result()
    assert torch.equal(output.sequences, expected.sequences)
    assert 4 in widths and 2 in widths and output.assist_stats.rounds > expected.assist_stats.rounds


def test_without_memory_for_plain_decoding_the_error_carries_what_was_published(monkeypatch, models):
    session = opened(models, [9, 4], do_sample=False)
    published = [[], []]
    for _ in range(3):
        commit = session.step()
        for row, tokens in zip(commit.rows, commit.tokens, strict=True):
            published[row] += tokens

    def score(self, proposal, wanted):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="allocate") as caught:
        patch.setattr(Session, "score", score)
        session.step()
    assert caught.value.published == published
    assert torch.equal(session.result(), uninterrupted(models, [9, 4], do_sample=False))


def test_dropped_rows_end_where_they_stand_and_the_others_do_not_notice(models):
    expected = uninterrupted(models, [9, 4, 6], do_sample=False)
    session = opened(models, [9, 4, 6], do_sample=False, return_dict_in_generate=True)
    with pytest.raises(hf_exactassist.InvalidArgument, match="after the first step"):
        session.drop_rows([1])
    session.step()
    session.step()
    length = session.rows.lengths[1]
    session.drop_rows([1])
    with pytest.raises(hf_exactassist.InvalidArgument, match="out of 0 to 2"):
        session.drop_rows([3])
    output = session.result().sequences
    assert torch.equal(output[1, :length], expected[1, :length]) and not output[1, length:].any()
    assert all(torch.equal(output[row], expected[row, : output.shape[1]]) for row in (0, 2))


def test_a_cache_passed_in_is_filled_by_the_result_or_given_back(models):
    cache = DynamicCache(config=models[0].config)
    session = opened(models, [6], do_sample=False, **{CACHE: cache})
    session.step()
    session.step()
    session.abandon()
    assert cache.get_seq_length() == 0
    output = opened(models, [6], do_sample=False, **{CACHE: cache}).result()
    assert cache.get_seq_length() == output.shape[1] - 1


def test_a_session_needs_a_drafter_and_ends_the_streamer_when_refused(models):
    with pytest.raises(hf_exactassist.InvalidArgument, match="drafter"):
        hf_exactassist.start(models[0], **prompts([5]))
    streamer = RecordingStreamer()
    with pytest.raises(hf_exactassist.UnsupportedDecodingMode):
        opened(models, [5], num_beams=2, streamer=streamer)
    assert streamer.ended == 1


def test_what_is_handed_out_is_in_the_result_where_rows_go_on_for_each_other(models):
    """Without an EOS id a stopped row goes on until the last one stops, and is cut there."""
    settings = {"do_sample": False, "eos_token_id": None}
    plain = models[0].generate(**prompts([9, 4, 6]), **{**settings, "max_new_tokens": 24, "pad_token_id": 0})
    ends = torch.tensor([plain[0, 11], plain[1, 16], plain[2, 13]])
    settings["stopping_criteria"] = [lambda ids, scores: ids[:, -1] == ends.to(ids)]
    expected = uninterrupted(models, [9, 4, 6], **settings)
    session, seen = opened(models, [9, 4, 6], **settings), [[], [], []]
    for row, token in session:
        seen[row].append(token)
        so_far = session.sequences_so_far()
        assert all(
            whole[: len(tokens)] == tokens for whole, tokens in zip(expected[:, 9:].tolist(), so_far, strict=True)
        )
    assert seen == expected[:, 9:].tolist() and expected.shape[1] < 9 + 24


# --- the end, and sessions that nobody ends


@pytest.mark.parametrize("cache", ["own", "passed in"])
@pytest.mark.parametrize("number", [1, 2, 3, 4])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_a_result_that_failed_half_way_can_be_asked_for_again(monkeypatch, models, lengths, number, cache):
    """Handing the cache over takes memory, layer by layer."""
    mode = {**MODES["sampled"], "return_dict_in_generate": True}
    expected = uninterrupted(models, lengths, **mode)
    given = DynamicCache(config=models[0].config)
    session = opened(models, lengths, **mode, **({CACHE: given} if cache == "passed in" else {}))
    while session.step() is not None:
        pass
    event, original = Armed(torch.OutOfMemoryError("CUDA out of memory."), number), torch.Tensor.contiguous

    def contiguous(tensor, *args, **kwargs):
        event()
        return original(tensor, *args, **kwargs)

    with monkeypatch.context() as patch, pytest.raises(torch.OutOfMemoryError) as caught:
        patch.setattr(torch.Tensor, "contiguous", contiguous)
        session.result()
    new = expected.sequences[:, max(lengths) :].tolist()
    assert [row[: len(text)] for row, text in zip(new, caught.value.published, strict=True)] == caught.value.published
    output = session.result()
    assert torch.equal(output.sequences, expected.sequences)
    assert cache == "own" or output[CACHE] is given
    for ours, theirs in zip(output[CACHE].layers, expected[CACHE].layers, strict=True):
        assert torch.equal(ours.keys, theirs.keys) and torch.equal(ours.values, theirs.values)


@pytest.mark.parametrize("end", ["abandon", "forget"])
def test_a_cache_passed_in_is_as_it_was_until_the_result_is_there(models, end):
    first = models[0].generate(
        **prompts([6]), do_sample=False, max_new_tokens=4, eos_token_id=None, return_dict_in_generate=True
    )
    cache, text = first[CACHE], first.sequences
    before = [(layer.keys.clone(), layer.values.clone()) for layer in cache.layers]
    call = {"assistant_model": models[1], **SETTINGS, "do_sample": False, CACHE: cache}
    session = hf_exactassist.start(models[0], text, **call)
    session.step()
    session.step()
    assert cache.get_seq_length() == text.shape[1] - 1
    if end == "abandon":
        session.abandon()
    del session
    gc.collect()
    for layer, (keys, values) in zip(cache.layers, before, strict=True):
        assert torch.equal(layer.keys, keys) and torch.equal(layer.values, values)
    plain = models[0].generate(text, **SETTINGS_OF_PLAIN, **{CACHE: copy.deepcopy(cache)})
    assert torch.equal(hf_exactassist.generate(models[0], text, **call), plain)


SETTINGS_OF_PLAIN = {name: value for name, value in SETTINGS.items() if name != "num_assistant_tokens"}
SETTINGS_OF_PLAIN["do_sample"] = False


@pytest.mark.parametrize("how", ["steps", "iteration", "result"])
def test_the_streamer_ends_once_when_all_is_published(models, how):
    streamer = RecordingStreamer()
    session = opened(models, [6], do_sample=False, streamer=streamer)
    if how == "steps":
        while session.step() is not None:
            pass
    elif how == "iteration":
        list(session)
    assert streamer.ended == (how != "result")
    session.result()
    session.result()
    assert streamer.ended == 1


def test_settings_may_stand_in_a_generation_config(models):
    """Keyword arguments beat it, as for every setting."""
    config = GenerationConfig(**SETTINGS, do_sample=True)
    config.coupling, config.layout, config.seed = "shared_noise", "retained", 7
    call = {"assistant_model": models[1], "generation_config": config}
    session = hf_exactassist.start(models[0], **prompts([6]), **call)
    assert session.coordinate().layout == "retained" and session.judging.coupling == "shared_noise"
    expected = uninterrupted(models, [6], do_sample=True, coupling="shared_noise", seed=7)
    assert torch.equal(session.result(), expected)
    session = hf_exactassist.start(models[0], **prompts([6]), **call, layout="replay", coupling="maximal")
    assert session.coordinate().layout == "replay" and session.judging.coupling == "maximal"
    config.layout = "sideways"
    with pytest.raises(hf_exactassist.InvalidArgument, match="layout.*sideways"):
        hf_exactassist.start(models[0], **prompts([6]), **call)


@pytest.mark.parametrize("rows", [0, None, [3], [-1], ["a"]])
def test_rows_to_drop_are_a_list_of_rows(models, rows):
    session = opened(models, [9, 4, 6], do_sample=False)
    session.step()
    with pytest.raises(hf_exactassist.InvalidArgument, match="out of 0 to 2"):
        session.drop_rows(rows)


@pytest.mark.parametrize("schedule", ["constant", "heuristic"])
def test_an_interrupt_while_a_round_is_told_waits(request, models, schedule):
    """The schedule learns of every round once: the next drafts depend on it."""
    mode = {**MODES["sampled"], "num_assistant_tokens_schedule": schedule, "return_dict_in_generate": True}
    expected = uninterrupted(models, [9, 4, 6], **mode)
    session, interrupts = opened(models, [9, 4, 6], **mode), 0
    observe = session.schedule.observe

    def interrupted(*args):
        signal.raise_signal(signal.SIGINT)
        observe(*args)

    session.schedule.observe = interrupted
    # whoever started the tests may have them ignore it
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    while not session.finished:
        generation = session.rows.state.generation
        try:
            session.step()
        except KeyboardInterrupt:
            interrupts += 1
        assert session.rows.state.generation == generation + 1
    output = session.result()
    assert interrupts > 2 and torch.equal(output.sequences, expected.sequences)
    assert output.assist_stats.drafted_by_position == expected.assist_stats.drafted_by_position
