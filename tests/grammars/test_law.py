"""The joint law under a grammar, every random choice walked (contract 0x06D, 0x06J)."""

import pytest
import torch
import xgrammar.contrib.hf
from outlines.backends.outlines_core import OutlinesCoreLogitsProcessor
from outlines.backends.xgrammar import XGrammarLogitsProcessor
from outlines_core import Index, Vocabulary

from hf_exactassist import AssistedDecoding
from hf_exactassist.drafters import AssistantModelDrafter, PromptLookupDrafter
from hf_exactassist.schedules import ConstantSchedule
from hf_exactassist.verification.enumeration import total_variation
from tests.exactness.hash_model import hash_pair
from tests.exactness.walk import law


TOKENS, EOS = 4, 2
INFO = xgrammar.TokenizerInfo(["a", "b", "$"], vocab_type=xgrammar.VocabType.RAW, vocab_size=3, stop_token_ids=[EOS])
# as many b at the end as a at the beginning
NESTED = xgrammar.GrammarCompiler(INFO, max_threads=1).compile_grammar('root ::= "a" root "b" | "b" | "ba"')
INDEX = Index("(a|ab)*b?", Vocabulary(EOS, {"a": [0], "b": [1]}))


class Late(xgrammar.contrib.hf.LogitsProcessor):
    """The grammar begins after a token `a`; for one row."""

    on = False

    def __call__(self, input_ids, scores):
        if not self.on and int(input_ids[0, -1]) == 0:
            self.on = True
        return super().__call__(input_ids, scores.clone()) if self.on else scores


PROCESSORS = {
    "xgrammar": lambda: xgrammar.contrib.hf.LogitsProcessor(NESTED),
    "outlines": lambda: OutlinesCoreLogitsProcessor(INDEX, "torch"),
    "outlines over xgrammar": lambda: XGrammarLogitsProcessor(NESTED, "torch"),
    "after a trigger": lambda: Late(NESTED),
}


def laws(name, drafter, rows=1, row=0):
    """Of plain decoding of one row alone, and of that row in an assisted batch."""
    target, assistant = hash_pair(3)
    ids = torch.tensor([[1, 1, 1], [2, 1, 1]])
    common = {"do_sample": True, "top_k": 0, "max_new_tokens": TOKENS, "eos_token_id": EOS, "pad_token_id": 0}

    def plain():
        given = {"input_ids": ids[row : row + 1], "logits_processor": [PROCESSORS[name]()]}
        return tuple(target.generate(**common, **given)[0].tolist())

    def ours():
        made = drafter(assistant)
        given = {"input_ids": ids[:rows], "logits_processor": [PROCESSORS[name]()]}
        output = target.generate(**common, **given, custom_generate=AssistedDecoding(made, ConstantSchedule(2)))
        # beside a longer row it is padded
        return tuple(output[row].tolist())

    def trimmed(text):
        return text[: text.index(EOS, 3) + 1] if EOS in text[3:] else text

    mine = {}
    for text, probability in law(ours, {row} if rows > 1 else None).items():
        mine[trimmed(text)] = mine.get(trimmed(text), 0) + probability
    return law(plain), mine


def by_model(assistant):
    return AssistantModelDrafter(assistant, torch.ones(3, dtype=torch.bool))


@pytest.mark.parametrize("name", PROCESSORS)
def test_law_is_the_targets(name):
    plain, ours = laws(name, by_model)
    assert len(plain) > 3 and total_variation(plain, ours) < 1e-6


@pytest.mark.parametrize("name", ["xgrammar", "outlines"])
def test_law_with_prompt_lookup(name):
    plain, ours = laws(name, lambda assistant: PromptLookupDrafter(2))
    assert total_variation(plain, ours) < 1e-6


@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize("name", ["xgrammar", "outlines", "outlines over xgrammar"])
def test_law_of_each_row_of_a_batch(name, row):
    plain, ours = laws(name, by_model, rows=2, row=row)
    assert total_variation(plain, ours) < 1e-6
