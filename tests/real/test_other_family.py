"""Two real models of different families draft for each other: Gemma 3 270M and SmolLM2-135M, two tokenizers (0x06).

Every token is that of plain `generate` of the same left-padded batch, in float32. About half an hour on one thread.
"""

import hashlib
from dataclasses import dataclass, field

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import ModelOutput

import hf_exactassist
from hf_exactassist import AssistStats
from tests.real.prompts import prompts


# a batch takes a minute, on machines that others may be using too
pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

NEW_TOKENS = 24
PROMPTS = prompts()
# Every 25th prompt, so that each batch of eight mixes kinds and lengths.
BATCHES = [PROMPTS[start::25] for start in range(25)]
# A draft length for each batch; long ones take longest.
LENGTHS = [[1, 4, 1, 4, 8][index % 5] for index in range(len(BATCHES))]
TARGETS = ["gemma3", "smollm2"]


@dataclass
class Families:
    """Target and assistant with their tokenizers. What a batch gave is kept, as several tests ask for it."""

    target: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    assistant: PreTrainedModel
    assistant_tokenizer: PreTrainedTokenizerBase
    _assisted: dict[int, ModelOutput] = field(default_factory=dict)

    def inputs(self, index: int) -> BatchEncoding:
        """Ids and mask of a batch, padded on the left."""
        return self.tokenizer(BATCHES[index], return_tensors="pt", padding=True)

    def plain(self, index: int, **settings: object) -> torch.Tensor:
        """The sequences without any assistant, [8, length]."""
        return self.target.generate(**self.inputs(index), max_new_tokens=NEW_TOKENS, **settings)

    def generate(self, index: int, **settings: object) -> ModelOutput:
        """The same through this package."""
        return hf_exactassist.generate(
            self.target,
            **self.inputs(index),
            assistant_model=self.assistant,
            tokenizer=self.tokenizer,
            assistant_tokenizer=self.assistant_tokenizer,
            max_new_tokens=NEW_TOKENS,
            num_assistant_tokens=LENGTHS[index],
            return_dict_in_generate=True,
            **settings,
        )

    def assisted(self, index: int) -> ModelOutput:
        """What `generate` gives greedily."""
        if index not in self._assisted:
            self._assisted[index] = self.generate(index, do_sample=False)
        return self._assisted[index]


@pytest.fixture(scope="module", autouse=True)
def two_threads():
    """As many as the environment says, instead: on a busy machine two that wait for each other are slower than one."""


@pytest.fixture(scope="module")
def models(gemma_folder, target_folder):
    folders = {"gemma3": gemma_folder, "smollm2": target_folder}
    return {
        name: (
            AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(),
            AutoTokenizer.from_pretrained(folder, padding_side="left"),
        )
        for name, folder in folders.items()
    }


@pytest.fixture(scope="module")
def before(models):
    """What the models are like before they have been used."""
    return {name: _contents(model) for name, (model, _) in models.items()}


@pytest.fixture(scope="module")
def families(models, before):
    """Both pairs, by the name of the target."""
    (gemma, smollm) = (models[name] for name in TARGETS)
    return {"gemma3": Families(*gemma, *smollm), "smollm2": Families(*smollm, *gemma)}


def _contents(model):
    weights = {name: hashlib.sha256(value.numpy()).hexdigest() for name, value in model.state_dict().items()}
    return weights, model.config.to_dict(), model.generation_config.to_dict(), set(vars(model))


def test_the_prompts_are_what_the_tests_say(families):
    """200 different prompts of 20 to 300 characters, in batches of eight with rows of different lengths."""
    assert len(set(PROMPTS)) == 200
    assert all(20 <= len(prompt) <= 300 for prompt in PROMPTS)
    assert [len(batch) for batch in BATCHES] == [8] * 25
    for pair in families.values():
        for index in range(len(BATCHES)):
            assert len(set(pair.inputs(index)["attention_mask"].sum(1).tolist())) > 3


@pytest.mark.parametrize("index", range(len(BATCHES)))
@pytest.mark.parametrize("target", TARGETS)
def test_greedy_identity_of_a_ragged_batch(families, target, index):
    pair = families[target]
    output, plain = pair.assisted(index), pair.plain(index, do_sample=False)
    assert output.sequences.tolist() == plain.tolist()
    assert output.assist_stats.serial is None and output.assist_stats.drafted > 0


@pytest.mark.timeout(3600)  # alone, it generates all that the identity tests have generated before it otherwise
@pytest.mark.parametrize("target", TARGETS)
def test_drafts_are_accepted_in_part(families, target):
    """The families agree on more than a fifth of the next tokens; so the tests above judge right and wrong drafts."""
    total = sum((families[target].assisted(index).assist_stats for index in range(len(BATCHES))), AssistStats())
    first = total.accepted_by_position[0] / total.drafted_by_position[0]
    print(f"{target}: {total.accepted} of {total.drafted} drafts accepted, {first:.2f} of the first of a round")
    assert 0.2 < first < 0.9, total
    assert total.accepted_by_position[1] > 0, total


@pytest.mark.parametrize("target", TARGETS)
def test_sampled_texts_are_plain_under_shared_noise(families, target):
    pair, index = families[target], 1
    settings = {"do_sample": True, "temperature": 0.9}
    torch.manual_seed(5)
    ours = pair.generate(index, **settings, coupling="shared_noise")
    torch.manual_seed(5)
    assert ours.sequences.tolist() == pair.plain(index, **settings).tolist()
    assert ours.sequences.tolist() != pair.assisted(index).sequences.tolist()
    assert ours.assist_stats.accepted > 0


@pytest.mark.parametrize("target", TARGETS)
def test_models_are_as_they_were(families, models, before, target):
    """Weights, configs and attributes of target and assistant, after all the runs above and one at least."""
    families[target].assisted(0)
    for name, (model, _) in models.items():
        assert _contents(model) == before[name]
