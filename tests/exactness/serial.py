"""Speculative decoding of one row as slowly and plainly as it can be written: no cache, no batch, no blocks.

Every probability is a full forward over a list of tokens, every decision a comparison of two numbers.
"""

from dataclasses import dataclass, field

import torch

from hf_exactassist.randomness import ACCEPT, DRAFT, ORDINARY, TERMINAL, Noise
from hf_exactassist.records import Spent


@dataclass
class Serial:
    """What a row publishes.

    Attributes:
        tokens: its new tokens.
        ends: number of new tokens after each round, the prompt's first.
        drafted: draft length of each round.
        accepted: accepted tokens of each round, before stopping.
        terminal: `"recovered"`, `"bonus"` or `"stop"`.
        spent: numbers used after each round.
    """

    tokens: list = field(default_factory=list)
    ends: list = field(default_factory=list)
    drafted: list = field(default_factory=list)
    accepted: list = field(default_factory=list)
    terminal: list = field(default_factory=list)
    spent: list = field(default_factory=list)


def serial(target, assistant, prompt, *, k, new, eos, seed=None, identity=0):
    """Decodes one row; greedy without a seed."""
    result, text, spent = Serial(), list(prompt), Spent()
    numbers = Noise(seed or 0, [identity])

    def number(stream, position):
        return float(numbers.block(stream, [0], [position], 1))

    @torch.no_grad()
    def law(model, tokens):
        logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1].float()
        if seed is None:
            return torch.nn.functional.one_hot(logits.argmax(), len(logits)).float()
        return torch.softmax(logits, dim=-1)

    def draw(weights, uniform):
        if seed is None:
            return int(weights.argmax())
        cdf = weights.double().cumsum(0)
        return int(torch.searchsorted(cdf, torch.tensor(uniform * float(cdf[-1])), right=True))

    def publish(tokens, drafted, accepted, terminal, used):
        nonlocal text, spent
        text, spent = text + tokens, spent.plus(used) if seed is not None else spent
        result.tokens += tokens
        result.ends.append(len(result.tokens))
        result.drafted.append(drafted)
        result.accepted.append(accepted)
        result.terminal.append(terminal)
        result.spent.append(spent)

    publish([draw(law(target, text), number(ORDINARY, len(text)))], 0, 0, "bonus", Spent(ordinary=1))
    while len(result.tokens) < new and result.tokens[-1] not in eos:
        draft, laws = [], []
        while len(draft) < min(k, new - len(result.tokens) - 1) and not (draft and draft[-1] in eos):
            laws.append(law(assistant, text + draft))
            draft.append(draw(laws[-1], number(DRAFT, len(text) + len(draft))))
        tokens, used, terminal = [], Spent(draft=len(draft)), "bonus"
        for token, q in zip(draft, laws, strict=True):
            place, p = len(text) + len(tokens), law(target, text + tokens)
            used = used.plus(Spent(accept=1))
            if number(ACCEPT, place) * float(q[token]) < float(p[token]):
                tokens.append(token)
                if token in eos:
                    break
            else:
                terminal = "recovered"
                left = p if seed is None else (p - q).clamp_min(0)
                break
        accepted = len(tokens)
        if tokens and tokens[-1] in eos:
            publish(tokens, len(draft), accepted, "stop", used)
            continue
        weights = left if terminal == "recovered" else law(target, text + tokens)
        stream = TERMINAL if draft else ORDINARY
        tokens.append(draw(weights, number(stream, len(text) + len(tokens))))
        used = used.plus(Spent(terminal=1) if draft else Spent(ordinary=1))
        publish(tokens, len(draft), accepted, terminal, used)
    return result
