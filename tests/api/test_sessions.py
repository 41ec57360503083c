"""A call stepped from outside: a round that fails changes nothing and is made again (contract 0x06A, 0x06E)."""

import pytest
import torch
from transformers import DynamicCache

import hf_exactassist
from hf_exactassist import session as session_module
from hf_exactassist.models.admission import admit
from tests.api.helpers import CACHE, RecordingStreamer
from tests.tiny import EVEN_NOISE, noisy, prompts, tiny


SETTINGS = {"eos_token_id": [7, 23], "pad_token_id": 0, "max_new_tokens": 24, "num_assistant_tokens": 3}
MODES = {"greedy": {"do_sample": False}, "sampled": {"do_sample": True, "seed": 28}}
LENGTHS = [[6], [9, 4, 6]]


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


def break_once(monkeypatch, where, models, error, number):
    """Makes the `number`-th event of a kind fail once; returns settings."""
    count, armed = [0], []

    def event(*args, **kwargs):
        if armed:
            count[0] += 1
            if count[0] == number:
                raise error

    if where in ("target forward", "draft forward"):
        model = models[where == "draft forward"]
        model.model.layers[1].register_forward_pre_hook(event)
        admit(model)
        armed.append(True)
        return {}
    armed.append(True)
    if where == "criterion":
        return {"stopping_criteria": [lambda ids, scores: event() or torch.zeros(len(ids), dtype=torch.bool)]}
    if where == "streamer":

        class Failing(RecordingStreamer):
            def put(self, value):
                event()
                super().put(value)

        return {"streamer": Failing()}
    method = {
        "after drafting": "score",
        "after the target's forward": "process",
        "after processing": "judge",
        "after the verdict": "stage",
        "before publication": "publish",
    }[where]
    original = getattr(session_module.Session, method)

    def failing(self, *args, **kwargs):
        event()
        return original(self, *args, **kwargs)

    monkeypatch.setattr(session_module.Session, method, failing)
    return {}


FORWARDS = ("target forward", "draft forward")
STAGES = (
    "after drafting",
    "after the target's forward",
    "after processing",
    "after the verdict",
    "before publication",
)


@pytest.mark.parametrize("error", [Broken, KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("number", [1, 2, 5])
@pytest.mark.parametrize("where", [*FORWARDS, *STAGES])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_a_round_that_failed_is_made_again(monkeypatch, models, lengths, where, number, error):
    """Same tokens, same counters, same random numbers as without the failure."""
    mode = {**MODES["sampled"], "return_dict_in_generate": True, "output_scores": True, "output_hidden_states": True}
    expected = uninterrupted(models, lengths, **mode)
    session = opened(models, lengths, **mode, **break_once(monkeypatch, where, models, error, number))
    failures = 0
    while not session.finished:
        before = [list(session.rows.lengths), session.sequences_so_far(), vars(session.stats).copy()]
        try:
            session.step()
        except error:
            failures += 1
            after = [list(session.rows.lengths), session.sequences_so_far(), vars(session.stats).copy()]
            assert after == before
    output = session.result()
    assert failures == 1 and torch.equal(output.sequences, expected.sequences)
    assert output.assist_stats.accepted_by_position == expected.assist_stats.accepted_by_position
    assert output.assist_stats.rounds == expected.assist_stats.rounds
    for ours, theirs in zip(output.scores, expected.scores, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-4)
    assert len(output.hidden_states) == len(expected.hidden_states)
    for ours, theirs in zip(output[CACHE].layers, expected[CACHE].layers, strict=True):
        assert torch.allclose(ours.keys, theirs.keys, atol=1e-4)


@pytest.mark.parametrize("number", [1, 3, 6])
def test_a_criterion_or_a_streamer_that_failed_once(monkeypatch, models, number):
    """A streamer is not given a token twice; the one it failed on is lost to it and to nobody else."""
    expected = uninterrupted(models, [6], do_sample=False, eos_token_id=None)
    for where in ("criterion", "streamer"):
        settings = break_once(monkeypatch, where, models, Broken, number + 1)
        session, failures = opened(models, [6], do_sample=False, eos_token_id=None, **settings), 0
        while not session.finished:
            try:
                session.step()
            except Broken:
                failures += 1
        assert failures == 1 and torch.equal(session.result(), expected)
        if where == "streamer":
            streamer = settings["streamer"]
            assert len(streamer.puts) == expected.shape[1] - 6 + 1 - 1 and streamer.ended == 1


@pytest.mark.parametrize("lengths", LENGTHS)
def test_without_memory_drafts_get_shorter(monkeypatch, models, lengths):
    """A round of more than two columns finds no memory; the text is the same, whatever is drafted."""
    mode = {"do_sample": True, "coupling": "shared_noise", "seed": 3, "return_dict_in_generate": True}
    expected, widths = uninterrupted(models, lengths, **mode), []
    original = session_module.Session.score

    def score(self, proposal, wanted):
        widths.append(proposal.draft.width + 1)
        if proposal.draft.width + 1 > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return original(self, proposal, wanted)

    monkeypatch.setattr(session_module.Session, "score", score)
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
        patch.setattr(session_module.Session, "score", score)
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
    with pytest.raises(hf_exactassist.InvalidArgument, match="Rows 0 to 2"):
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
