"""How much work a call does, counted and not timed (contract 0x05A, 0x05B, 0x05C; user-reports A.10, A.11)."""

import contextlib
import copy
import math
from dataclasses import dataclass

import pytest
import torch

import hf_exactassist
from hf_exactassist.drafters import AssistantModelDrafter
from hf_exactassist.models import admission
from hf_exactassist.schedules import ConstantSchedule
from tests.tiny import ARCHITECTURES, EVEN_NOISE, ScriptedDrafter, noisy, prompts, tiny


LENGTHS = (1, 5, 8, 13)
SETTINGS = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0, "max_new_tokens": 24}


@contextlib.contextmanager
def query_tokens(model):
    """Lists the number of query tokens of every forward of `model`, the admission probe's left out."""
    widths = []
    hook = model.register_forward_pre_hook(
        lambda module, args, kwargs: widths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    admission.admit(model)
    widths.clear()
    yield widths
    hook.remove()


@dataclass
class Proposal:
    """What a drafter was asked for and answered in one round, by active row."""

    prefixes: list[list[int]]
    budgets: list[int]
    wanted: list[int]
    tokens: list[list[int]]
    probs: torch.Tensor | None


@pytest.fixture
def proposals(monkeypatch):
    """Spies on the assistant drafter."""
    seen, propose = [], AssistantModelDrafter.propose

    def spy(self, lengths):
        rows = self.context.rows
        starts = [rows.prompt_length - rows.prompt_tokens[row] for row in rows.active]
        prefixes = [
            rows.ids[row, start : rows.lengths[row]].tolist() for row, start in zip(rows.active, starts, strict=True)
        ]
        budgets = rows.budgets()
        draft = propose(self, lengths)
        tokens = [draft.tokens[i, :length].tolist() for i, length in enumerate(draft.lengths)]
        seen.append(Proposal(prefixes, budgets, list(lengths), tokens, draft.probs))
        return draft

    monkeypatch.setattr(AssistantModelDrafter, "propose", spy)
    return seen


def assisted(target, inputs, assistant, **settings):
    settings = {**SETTINGS, **settings, "return_dict_in_generate": True, "assistant_model": assistant}
    return hf_exactassist.generate(target, **inputs, **settings)


def alone(model, prefix):
    """The logits after a prefix, from an independent forward."""
    with torch.no_grad():
        return model(input_ids=torch.tensor([prefix]), use_cache=False).logits[0, -1]


@pytest.mark.parametrize("lengths", [(7,), LENGTHS])
@pytest.mark.parametrize("k", [1, 2, 5, 20])
def test_a_perfect_assistant_needs_no_more_target_forwards_than_blocks(lengths, k):
    """A94: at most ceil(N / (K + 1)) + 1 target forwards, one of them the prefill."""
    target = tiny()
    assistant = copy.deepcopy(target)
    with query_tokens(target) as widths:
        stats = assisted(target, prompts(lengths), assistant, num_assistant_tokens=k).assist_stats
    assert len(widths) == stats.target_forwards <= math.ceil(24 / (k + 1)) + 1


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_perfect_assistant_stays_perfect_for_many_rounds(architecture):
    """A17: after an accepted round it is fed its own last draft and the bonus token, in one forward."""
    target, k = tiny(architecture), 3
    assistant = copy.deepcopy(target)
    with query_tokens(assistant) as widths:
        stats = assisted(target, prompts(LENGTHS), assistant, num_assistant_tokens=k, max_new_tokens=48).assist_stats
    assert stats.rounds >= 10 and stats.acceptance_rate == 1
    # the prompt and the first token, then two tokens at the start of each round and single ones after
    assert widths[0] == max(LENGTHS) + 1
    assert set(widths[1:]) == {1, 2} and widths.count(2) == stats.rounds - 1
    assert len(widths) == stats.draft_forwards <= k * stats.rounds


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_draft_is_what_a_fresh_assistant_would_draft(proposals, architecture):
    """A18: a cache cut wrongly after a rejection shows in the drafts, while the output stays right."""
    target = tiny(architecture)
    assistant = noisy(target, EVEN_NOISE[architecture])
    stats = assisted(target, prompts(LENGTHS), assistant).assist_stats
    assert 0.3 <= stats.acceptance_rate <= 0.8 and len(proposals) >= 6
    for proposal in proposals:
        for prefix, tokens in zip(proposal.prefixes, proposal.tokens, strict=True):
            if tokens:
                # a mask, since a published token may look like padding
                prompt = {"input_ids": torch.tensor([prefix]), "attention_mask": torch.ones(1, len(prefix))}
                fresh = assistant.generate(**prompt, **{**SETTINGS, "max_new_tokens": len(tokens)})
                assert fresh[0, len(prefix) :].tolist() == tokens


@pytest.mark.parametrize("architecture", ["llama", "mistral", "gpt2"])
def test_sampled_drafts_come_with_the_laws_of_a_fresh_assistant(proposals, architecture):
    """A18, contract 0x02B: `Draft.probs` are the assistant's own conditionals along its sampled path."""
    target = tiny(architecture)
    assistant = noisy(target, EVEN_NOISE[architecture])
    settings = {"do_sample": True, "top_k": 0, "seed": 3, "temperature": 0.5}
    stats = assisted(target, prompts(LENGTHS), assistant, **settings).assist_stats
    assert 0 < stats.accepted < stats.drafted
    for proposal in proposals:
        for i, (prefix, tokens) in enumerate(zip(proposal.prefixes, proposal.tokens, strict=True)):
            for j in range(len(tokens)):
                law = (alone(assistant, prefix + tokens[:j]) / 0.5).softmax(-1)
                torch.testing.assert_close(proposal.probs[i, j], law, rtol=0, atol=2e-5)


@pytest.mark.parametrize("k", [1, 5])
@pytest.mark.parametrize("kind", ["even", "own"])
def test_no_block_reads_more_than_the_frontier_and_the_drafts(kind, k):
    """A74, contract 0x04A: after the prefill no target forward exceeds K + 1 query tokens."""
    target = tiny()
    assistant = noisy(target, EVEN_NOISE["llama"]) if kind == "even" else copy.deepcopy(target)
    with query_tokens(target) as widths:
        stats = assisted(target, prompts(LENGTHS), assistant, num_assistant_tokens=k).assist_stats
    assert widths[0] == max(LENGTHS) and stats.rounds == len(widths) - 1 > 2
    assert max(widths[1:]) == k + 1


def test_rejected_drafts_are_not_read_again_by_the_assistant():
    """A74 for the assistant: a round starts with the tokens it has not read, and goes on one by one."""
    target = tiny()
    assistant = noisy(target, EVEN_NOISE["llama"])
    with query_tokens(assistant) as widths:
        stats = assisted(target, prompts(LENGTHS), assistant, num_assistant_tokens=5).assist_stats
    assert 0 < stats.accepted < stats.drafted
    assert set(widths[1:]) <= {1, 2}


@pytest.mark.parametrize("new", [1, 2, 3, 7])
@pytest.mark.parametrize("lengths", [(6,), LENGTHS])
def test_nothing_is_drafted_that_the_budget_cannot_hold(proposals, lengths, new):
    """A61: each row drafts at most remaining - 1 tokens, since the terminal token needs a place too."""
    target = tiny()
    assistant = noisy(target, EVEN_NOISE["llama"])
    with query_tokens(assistant) as widths:
        assisted(target, prompts(lengths), assistant, num_assistant_tokens=20, max_new_tokens=new)
    for proposal in proposals:
        limits = [max(budget - 1, 0) for budget in proposal.budgets]
        assert all(wanted <= limit for wanted, limit in zip(proposal.wanted, limits, strict=True))
        assert all(len(tokens) <= limit for tokens, limit in zip(proposal.tokens, limits, strict=True))
    # reading and drafting in one: a round that drafts n tokens costs n forwards, and nothing where no place is left
    assert len(widths) <= sum(max(proposal.wanted) for proposal in proposals)
    assert bool(widths) == (new > 2)


@pytest.mark.parametrize("eos", [None, [7, 19, 33]])
@pytest.mark.parametrize("kind", ["even", "own", "unrelated"])
def test_the_counters_add_up(monkeypatch, proposals, kind, eos):
    """Contract 0x05A, 0x05B: published = accepted + terminal tokens, of what was really published."""
    target = tiny()
    assistant = {"even": noisy(target, EVEN_NOISE["llama"]), "own": copy.deepcopy(target), "unrelated": tiny(seed=7)}[
        kind
    ]
    commits, observe = [], AssistantModelDrafter.observe

    def spy(self, commit):
        commits.append(commit)
        observe(self, commit)

    monkeypatch.setattr(AssistantModelDrafter, "observe", spy)
    inputs = prompts(LENGTHS)
    output = assisted(target, inputs, assistant, eos_token_id=eos)
    stats = output.assist_stats
    new = output.sequences[:, max(LENGTHS) :].tolist()
    ends = [next((i + 1 for i, token in enumerate(row) if token in (eos or ())), len(row)) for row in new]
    assert stats.published == sum(ends) == sum(len(tokens) for c in commits for tokens in c.tokens)
    assert stats.rounds == len(proposals) == len(commits) - 1
    # what is drafted behind an end does not count
    drafted = [
        next((i + 1 for i, token in enumerate(tokens) if token in (eos or ())), len(tokens))
        for proposal in proposals
        for tokens in proposal.tokens
    ]
    kept = [min(a, len(t)) for c in commits for a, t in zip(c.accepted, c.tokens, strict=True)]
    terminals = sum(len(t) > a for c in commits for a, t in zip(c.accepted, c.tokens, strict=True))
    assert stats.drafted == sum(drafted) == sum(stats.drafted_by_position)
    assert stats.accepted == sum(kept) == sum(stats.accepted_by_position)
    assert stats.published == stats.accepted + terminals
    places = range(max(drafted))
    assert stats.drafted_by_position == [sum(length > i for length in drafted) for i in places]
    assert stats.accepted_by_position == [sum(length > i for length in kept) for i in places]
    assert stats.acceptance_rate == stats.accepted / stats.drafted


def test_accepted_tokens_that_a_stop_cuts_off_are_not_counted():
    """Contract 0x05B, 0x06: a drafter that runs past the end, and whose tokens are all right."""
    target, inputs, width = tiny(), prompts(LENGTHS), max(LENGTHS)
    sequences = target.generate(**inputs, **SETTINGS)
    eos = sequences[:, width + 7].tolist()
    drafter = ScriptedDrafter(sequences, lambda row, number: 5)
    decoding = hf_exactassist.AssistedDecoding(drafter, ConstantSchedule(5))
    settings = {**SETTINGS, "eos_token_id": eos, "return_dict_in_generate": True, "custom_generate": decoding}
    stats = target.generate(**inputs, **settings).assist_stats
    ends = [next(i + 1 for i, token in enumerate(row) if token in eos) for row in sequences[:, width:].tolist()]
    assert stats.published == sum(ends)
    kept = [min(a, len(t)) for c in drafter.observed for a, t in zip(c.accepted, c.tokens, strict=True)]
    assert stats.accepted == sum(kept) == sum(a for c in drafter.observed for a in c.accepted)
    assert stats.drafted == sum(d for c in drafter.observed for d in c.drafted) < 5 * len(drafter.observed)
    assert stats.accepted_by_position == [sum(length > i for length in kept) for i in range(5)]
