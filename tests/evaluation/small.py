"""Small models with a tokenizer of words, prompts for them, and a clock that stands still."""

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hf_exactassist.benchmark.clocks import Taken
from hf_exactassist.evaluation.data import Prompt, PromptSet
from hf_exactassist.evaluation.models import Assistant, Models
from tests.tiny import noisy, tiny


WORDS = ["<pad>", "<s>", "</s>", *"abcdefghijklm"]
TEMPLATE = "{% for message in messages %}<s> {{ message.content }} a{% endfor %}"


def tokenizer():
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", bos_token="<s>", eos_token="</s>")
    made.chat_template = TEMPLATE
    return made


def small_models(noise=0.3, seed=0, **settings):
    """A target of 16 tokens and its noisy relative `small`."""
    target = tiny(vocabulary=len(WORDS), seed=seed, **settings)
    return Models(target, tokenizer(), {"small": Assistant(noisy(target, noise))})


def prompts(*texts):
    return PromptSet(tuple(Prompt(i, "given", text) for i, text in enumerate(texts)), {"dataset": "a test"}, False)


def standing(call, device):
    """Times nothing."""
    return call(), Taken(1.0, 2.0)
