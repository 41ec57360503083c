"""What every drafter promises: its tokens come from the law it returns, none is taken back (A24, 0x06J, 0x06K)."""

import copy
from unittest import mock

import pytest
import torch
from transformers import GenerationConfig, GenerationMixin
from transformers.generation import LogitsProcessor, LogitsProcessorList, TopKLogitsWarper

import hf_exactassist
from hf_exactassist.drafters import AssistantModelDrafter, DraftingContext, PromptLookupDrafter
from hf_exactassist.randomness import DRAFT, Noise
from hf_exactassist.records import Commit
from hf_exactassist.schedules import ConstantSchedule
from hf_exactassist.state.processors import ProcessorPipeline
from hf_exactassist.state.rows import Rows
from hf_exactassist.verification.distributions import inverse_cdf
from tests.tiny import ScriptedDrafter, looping, noisy, prompts, same_as_plain, tiny


V = 12


class GivenNoise(Noise):
    """Numbers a test has chosen, the same for every position of a row but for the ones it varies."""

    def __init__(self, table):
        super().__init__(0, range(len(table)))
        self.table = torch.tensor(table, dtype=torch.float64)

    def block(self, stream, rows, starts, width):
        assert stream == DRAFT
        return self.table[list(rows), :width]


class Last(LogitsProcessor):
    """A bias by the last token: the law of a position depends on the draft before it."""

    def __call__(self, input_ids, scores):
        bias = torch.linspace(-2, 2, scores.shape[1])
        return scores + torch.stack([bias.roll(int(row[-1])) for row in input_ids])


@pytest.fixture(scope="module")
def assistant():
    return tiny(vocabulary=V)


def context(ids, noise, processors=(), eos=(), vocabulary=V):
    rows = Rows(ids, None, ids.shape[1] + 30, 0, stop_alone=True)
    pipeline = ProcessorPipeline(list(processors), ids, vocabulary)
    return DraftingContext(rows, pipeline, vocabulary, frozenset(eos), noise)


def shared(size=V, without=()):
    return torch.tensor([token not in without for token in range(size)])


def started(assistant, ids, noise, shared_tokens=None, processors=(), eos=(), vocabulary=V, **settings):
    shared_tokens = shared(vocabulary) if shared_tokens is None else shared_tokens
    drafter = AssistantModelDrafter(assistant, shared_tokens, **settings)
    drafter.start(context(ids, noise, processors, eos, vocabulary))
    return drafter


PROCESSORS = {
    "none": lambda: ([], {}),
    "top-k": lambda: ([TopKLogitsWarper(4)], {}),
    "history": lambda: ([Last()], {}),
    "own temperature": lambda: ([TopKLogitsWarper(6), Last()], {"warper_settings": {"temperature": 0.5}}),
    "threshold": lambda: ([], {"confidence_threshold": 0.02}),
}


@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("name", PROCESSORS)
def test_the_law_of_the_drafted_tokens_is_the_law_returned(assistant, name, position):
    """A24: over a fine grid of one position's number, the others fixed, token by token."""
    processors, settings = PROCESSORS[name]()
    steps = 400
    numbers = [[0.01, 0.01, 0.01, 0.01] for _ in range(steps)]
    for i, row in enumerate(numbers):
        row[position] = (i + 0.5) / steps
    ids = prompts([4], vocabulary=V)["input_ids"].expand(steps, 4)
    drafter = started(assistant, ids, GivenNoise(numbers), processors=processors, **settings)
    draft = drafter.propose([4] * steps)
    assert min(draft.lengths) > position
    law = draft.probs[:, position]
    # the law of this position does not depend on its own number, nor on later ones
    assert torch.allclose(law, law[:1].expand_as(law), atol=1e-6)
    counts = torch.bincount(draft.tokens[:, position], minlength=V) / steps
    # a grid of cell size 1/steps cuts each of V intervals twice at most
    assert (counts - law[0]).abs().max() <= 1.01 / steps
    assert law[0].max() < 0.99
    assert torch.allclose(law.sum(-1), torch.ones(steps), atol=1e-5)


@pytest.mark.parametrize("name", PROCESSORS)
def test_every_token_is_drawn_from_its_own_row_of_probs(assistant, name):
    """A23, A24: ragged rows, several rounds of different acceptance; the law is recomputed by plain forwards."""
    processors, settings = PROCESSORS[name]()
    ids = prompts([5, 5, 5], vocabulary=V, seed=1)["input_ids"]
    noise = Noise(3, range(3))
    drafter = started(assistant, ids, noise, processors=processors, **settings)
    rows = drafter.context.rows
    warp = LogitsProcessorList(drafter._processors.processors)
    for accepted in ([2, 0, 1], [1, 3, 0], [0, 0, 3]):
        wanted, positions = [3, 4, 2], rows.positions()
        uniforms = noise.block(DRAFT, rows.active, positions, 4)
        draft = drafter.propose(wanted)
        for row, length in enumerate(draft.lengths):
            assert length <= wanted[row]
            for j in range(length):
                path = torch.cat([rows.ids[row, : rows.lengths[row]], draft.tokens[row, :j]])[None]
                law = warp(path, assistant(path).logits[:, -1].float()).softmax(-1)
                torch.testing.assert_close(draft.probs[row, j], law[0], rtol=0, atol=1e-5)
                assert draft.tokens[row, j] == inverse_cdf(draft.probs[row, j][None], uniforms[row, j][None])
        publish(drafter, draft, accepted)


def publish(drafter, draft, accepted):
    """Ends a round as the loop does: some drafts accepted, then another token."""
    rows = drafter.context.rows
    kept = [min(a, n) for a, n in zip(accepted, draft.lengths, strict=True)]
    tokens = [[*row[:n].tolist(), 5] for row, n in zip(draft.tokens, kept, strict=True)]
    rows.lay_out(tokens)
    commit = Commit(tuple(rows.active), draft.lengths, tuple(kept), tuple(map(tuple, tokens)), (None,) * len(tokens))
    rows.publish(commit)
    drafter.observe(commit)


@pytest.mark.parametrize("threshold", [0.0, 0.2, 0.5])
@pytest.mark.parametrize("seed", range(5))
def test_a_drawn_token_is_never_taken_back(assistant, threshold, seed):
    """An early stop comes after the token that caused it: the draft is a prefix of what it would be without."""
    ids = prompts([4, 4], vocabulary=V, seed=seed)["input_ids"]
    full = started(assistant, ids, Noise(seed, range(2))).propose([6, 4])
    draft = started(assistant, ids, Noise(seed, range(2)), confidence_threshold=threshold).propose([6, 4])
    assert full.lengths == (6, 4)
    for row, (length, whole) in enumerate(zip(draft.lengths, full.lengths, strict=True)):
        tokens = full.tokens[row, :whole].tolist()
        assert draft.tokens[row, :length].tolist() == tokens[:length]
        law = full.probs[row, range(whole), tokens]
        unsure = [j for j in range(whole) if law[j] < threshold]
        assert length == (unsure[0] + 1 if unsure else whole)


@pytest.mark.parametrize("sampled", [True, False])
@pytest.mark.parametrize("threshold", [0.0, 0.01])
def test_drafts_stop_after_an_eos(assistant, sampled, threshold):
    """A55: the EOS is the last token drafted; every other row goes on. Unread drafts are as long as wanted."""
    ids = prompts([4, 4, 4], vocabulary=V, seed=2)["input_ids"]

    def noise():
        return Noise(1, range(3)) if sampled else None

    full = started(assistant, ids, noise()).propose([6, 6, 6])
    eos = int(full.tokens[0, 2])
    draft = started(assistant, ids, noise(), eos=[eos], confidence_threshold=threshold).propose([6, 6, 6])
    for row, length in enumerate(draft.lengths):
        tokens = full.tokens[row].tolist()
        places = [j for j, token in enumerate(tokens) if token == eos]
        assert draft.tokens[row, :length].tolist() == tokens[:length]
        if threshold:
            assert length <= (places[0] + 1 if places else 6)
            assert eos not in draft.tokens[row, : max(length - 1, 0)]
    assert draft.lengths[0] <= 3 if threshold else draft.lengths == (6, 6, 6)


@pytest.mark.parametrize("sampled", [True, False])
def test_unshared_tokens_are_never_drafted_and_can_be_read(assistant, sampled):
    """A33, A36: also if a processor raises them; prompts and published tokens may hold them."""

    def raises(input_ids, scores):
        return torch.where(scores == -torch.inf, 9.0, scores)

    raises.stateless = True
    without = [3, 4, 5, 6]
    ids = torch.tensor([[3, 7, 4, 8], [7, 8, 9, 3]])
    drafter = started(assistant, ids, Noise(0, range(2)) if sampled else None, shared(without=without), [raises])
    for accepted in ([1, 0], [2, 2]):
        draft = drafter.propose([5, 5])
        assert not torch.isin(draft.tokens, torch.tensor(without)).any()
        if sampled:
            assert draft.probs[..., without].sum() == 0
        publish(drafter, draft, accepted)


def test_a_place_without_any_law_gives_its_token_no_probability(assistant):
    """Processors may leave no token that both models know: there is nothing to draw from, and nothing to keep."""

    def only_unshared(input_ids, scores):
        scores = scores.clone()
        scores[:, 4:] = -torch.inf if input_ids.shape[1] > 5 else 0
        return scores

    drafter = started(
        assistant, torch.tensor([[7, 8, 9, 10]]), Noise(0, [0]), shared(without=range(4)), [only_unshared]
    )
    draft = drafter.propose([5])
    assert draft.lengths == (3,)
    drawn = draft.probs.gather(2, draft.tokens[..., None]).squeeze(2)[0].tolist()
    assert min(drawn[:2]) > 0 and drawn[2] == 0


def test_drafts_are_the_same_after_any_acceptance(assistant):
    """A18: each round's drafts equal those of a fresh assistant on the whole text."""
    ids = prompts([5, 5], vocabulary=V, seed=4)["input_ids"]
    drafter = started(assistant, ids, None)
    for accepted in ([0, 3], [4, 1], [2, 2], [0, 4]):
        draft = drafter.propose([4, 4])
        rows = drafter.context.rows
        for row in range(2):
            path = rows.ids[row, : rows.lengths[row]][None]
            # token 0 is text here, though it is the padding too
            given = {"attention_mask": torch.ones_like(path), "max_new_tokens": 4, "eos_token_id": None}
            fresh = assistant.generate(path, do_sample=False, **given)
            assert draft.tokens[row].tolist() == fresh[0, -4:].tolist()
        publish(drafter, draft, accepted)


# --- heads of different size ---


def with_head(rows, extra=None):
    """A model over 50 tokens whose head and embedding are padded to `rows`; the padding has random weights."""
    model = tiny(vocabulary=50, seed=3)
    torch.manual_seed(extra or 0)
    model.resize_token_embeddings(rows, mean_resizing=False)
    return model


@pytest.mark.parametrize(("target", "assistant"), [(64, 56), (56, 64), (50, 64), (64, 50)])
@pytest.mark.parametrize("rows", [[5], [5, 3, 4]])
def test_heads_of_different_size_give_plain_generates_text(target, assistant, rows):
    """A33, A38, row 3."""
    model, draft = with_head(target), noisy(with_head(assistant), 0.05)
    ours = same_as_plain(
        model,
        prompts(rows, vocabulary=50),
        {"assistant_model": draft, "num_assistant_tokens": 4},
        max_new_tokens=16,
        eos_token_id=None,
    )
    assert 0 < ours.assist_stats.acceptance_rate < 1


@pytest.mark.parametrize(("target", "assistant"), [(64, 56), (56, 64)])
def test_sampled_tokens_lie_in_the_targets_head(target, assistant):
    """A36: every id handed to the target lies below its embedding's size; rows in the padding are the target's own."""
    model, draft = with_head(target), with_head(assistant, extra=1)
    with torch.no_grad():
        # tokens of the padding are likely, so that they come up as drafts and as text
        model.lm_head.weight[50:] *= 3
        draft.lm_head.weight[50:] *= 3
    sizes = []
    hook = model.get_input_embeddings().register_forward_pre_hook(
        lambda module, inputs: sizes.append(int(inputs[0].max()))
    )
    with hook:
        ours = hf_exactassist.generate(
            model,
            **prompts([5, 3], vocabulary=50),
            do_sample=True,
            seed=1,
            max_new_tokens=30,
            eos_token_id=None,
            assistant_model=draft,
            return_dict_in_generate=True,
        )
    assert max(sizes) < target
    assert ours.sequences.max() >= 50
    assert ours.assist_stats.accepted


# --- bad drafts, narrow laws ---


@pytest.mark.parametrize("k", [1, 5])
@pytest.mark.parametrize("rows", [[7], [7, 3, 5]])
def test_the_least_likely_tokens_never_change_the_text(rows, k):
    """A20: an adversary that knows the target drafts what it finds least likely."""
    target = tiny()
    adversary = copy.deepcopy(target)
    with torch.no_grad():
        adversary.lm_head.weight.neg_()
    ours = same_as_plain(
        target,
        prompts(rows),
        {"assistant_model": adversary, "num_assistant_tokens": k},
        max_new_tokens=12,
        eos_token_id=None,
    )
    assert ours.assist_stats.drafted and not ours.assist_stats.accepted


@pytest.mark.parametrize("assisted", ["noisy", "independent", "lookup"])
def test_no_published_token_lies_outside_the_nucleus(assisted):
    """A29: top-p at 0.3, computed by plain forwards on the published prefix."""
    target, inputs = looping()
    source = {
        "noisy": lambda: {"assistant_model": noisy(target, 0.1)},
        "independent": lambda: {"assistant_model": tiny(seed=8)},
        "lookup": lambda: {"prompt_lookup_num_tokens": 4},
    }[assisted]()
    length = inputs["input_ids"].shape[1]
    for seed in range(4):
        ours = hf_exactassist.generate(
            target,
            **inputs,
            do_sample=True,
            top_p=0.3,
            top_k=0,
            seed=seed,
            max_new_tokens=24,
            eos_token_id=None,
            **source,
        )
        probs = target(ours).logits[0, length - 1 : -1].softmax(-1)
        for law, token in zip(probs, ours[0, length:].tolist(), strict=True):
            assert law[law > law[token]].sum() < 0.3 + 1e-5


# --- inside Transformers' own loop ---


def own_loop(target, drafter, inputs, **settings):
    """Transformers' assisted decoding with one of our drafters as candidate generator."""
    seen = []

    def candidates(self, generation_config, logits_processor, **kwargs):
        drafter.standalone(
            target.config.vocab_size, 4, do_sample=bool(generation_config.do_sample), processors=logits_processor
        )
        get = drafter.get_candidates

        def recorded(input_ids, **kwargs):
            result = get(input_ids, **kwargs)
            seen.append((input_ids, *result))
            return result

        drafter.get_candidates = recorded
        return drafter

    with mock.patch.object(type(target), "_get_candidate_generator", candidates):
        # any assistant asks for the loop; the candidates come from our drafter
        output = GenerationMixin.generate(target, **inputs, **settings, prompt_lookup_num_tokens=4)
    del drafter.get_candidates
    return output, seen


@pytest.mark.parametrize("kind", ["assistant", "lookup"])
@pytest.mark.parametrize("settings", [{}, {"repetition_penalty": 1.3}, {"eos_token_id": 44}])
def test_transformers_own_loop_gives_plain_generates_text_with_our_drafters(kind, settings):
    """A drafter is a `CandidateGenerator`; one object serves two calls."""
    target, inputs = looping()
    drafter = PromptLookupDrafter(4)
    if kind == "assistant":
        drafter = AssistantModelDrafter(noisy(target, 0.1), torch.ones(80, dtype=torch.bool))
    settings = {"do_sample": False, "max_new_tokens": 24, "eos_token_id": None, **settings}
    plain = target.generate(**inputs, **settings)
    for _ in range(2):
        ours, seen = own_loop(target, drafter, inputs, **settings)
        assert ours.tolist() == plain.tolist()
    drafted = sum(candidates.shape[1] - ids.shape[1] for ids, candidates, _ in seen)
    assert drafted >= 4 and all(logits is None for *_, logits in seen)
    if settings["eos_token_id"] is None:
        # drafts were accepted: fewer rounds than tokens
        assert len(seen) < 24
    for before, after in zip(seen, seen[1:], strict=False):
        assert after[0].shape[1] > before[0].shape[1]


def test_transformers_own_loop_samples_with_the_drawn_law():
    """The softmax of the logits is the law the candidates were drawn from, processors included."""
    target, inputs = looping()
    assistant = noisy(target, 0.1)
    drafter = AssistantModelDrafter(assistant, torch.ones(80, dtype=torch.bool))
    torch.manual_seed(0)
    ours, seen = own_loop(target, drafter, inputs, do_sample=True, top_k=5, temperature=0.8, max_new_tokens=16)
    assert ours.shape[1] <= inputs["input_ids"].shape[1] + 16
    for ids, candidates, logits in seen:
        count = candidates.shape[1] - ids.shape[1]
        assert logits.shape == (1, count, 80)
        law = logits.softmax(-1)[0]
        full = assistant(candidates).logits[0, ids.shape[1] - 1 : -1] / 0.8
        kept = full >= full.topk(5, dim=-1).values[:, -1:]
        torch.testing.assert_close(law, full.masked_fill(~kept, -torch.inf).softmax(-1), rtol=0, atol=1e-5)
        assert (law.gather(1, candidates[0, ids.shape[1] :, None]) > 0).all()


def test_get_candidates_says_what_it_needs():
    drafter = PromptLookupDrafter(4)
    with pytest.raises(RuntimeError, match="standalone"):
        drafter.get_candidates(torch.tensor([[3, 4]]))
    with pytest.raises(ValueError, match="one row"):
        drafter.standalone(80, 4, do_sample=False).get_candidates(torch.tensor([[3, 4], [5, 6]]))


# --- any drafter in our loop ---


def test_a_drafter_of_the_callers_serves_our_loop():
    """Whatever it proposes, with or without a law, the text is the target's."""
    target, inputs = tiny(), prompts([6, 4])
    plain = target.generate(**inputs, do_sample=False, max_new_tokens=15, eos_token_id=None)
    for script in (lambda row, number: 99, lambda row, number: (row + number) % 4, lambda row, number: 0):
        drafter = ScriptedDrafter(plain, script)
        decoding = hf_exactassist.AssistedDecoding(drafter, ConstantSchedule(4))
        config = GenerationConfig(max_new_tokens=15, pad_token_id=0)
        ours = target.generate(**inputs, generation_config=config, eos_token_id=None, custom_generate=decoding)
        assert ours.tolist() == plain.tolist()
        for number, commit in enumerate(c for c in drafter.observed if any(c.drafted)):
            wanted = [min(script(row, number), n) for row, n in zip(commit.rows, commit.drafted, strict=True)]
            assert list(commit.accepted) == wanted
