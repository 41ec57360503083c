"""What the tests of the doors share: pairs of models, a toy tokenizer, comparisons and a recording streamer."""

import functools
import itertools

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast
from transformers.generation.streamers import BaseStreamer

import hf_exactassist
from hf_exactassist.models import compat
from tests.tiny import VOCABULARY, noisy, tiny


CACHE = compat.CACHE_ARGUMENT
# noise at which about half of the drafts are accepted
NOISE = {"gemma3": 0.25}


@functools.cache
def pair(architecture="llama", attention="sdpa"):
    """A target and an assistant that agrees often but not always. Shared by the tests, so nobody may change them."""
    with torch.random.fork_rng():  # the first test to ask keeps its seed
        target = tiny(architecture)
        target.set_attn_implementation(attention)
        return target, noisy(target, NOISE.get(architecture, 0.15))


def assisted(models, inputs, **settings):
    """A call through the function door."""
    target, assistant = models
    return hf_exactassist.generate(target, **inputs, assistant_model=assistant, **settings)


def cache_of(output):
    """The cache of an output object, under the name of this Transformers release."""
    return getattr(output, compat.CACHE_FIELD)


def drafts_were_mixed(output):
    """A test of rounds is worth nothing if all drafts, or none, were accepted."""
    stats = output.assist_stats
    return 0 < stats.accepted < stats.drafted and stats.rounds > 2


def ends(sequences, prompt, eos):
    """New tokens of each row up to and with its first EOS."""
    rows = [row[prompt:].tolist() for row in sequences]
    return [next((i + 1 for i, token in enumerate(row) if token in eos), len(row)) for row in rows]


def staggered_eos(model, inputs, length, at_least=2):
    """EOS ids that the model really produces, such that every row of the batch ends at another step."""
    ids = inputs["input_ids"]
    free = model.generate(**inputs, max_new_tokens=length, eos_token_id=None, do_sample=False)
    seen = sorted(set(free[:, ids.shape[1] :].reshape(-1).tolist()) - {0})
    best = None
    for eos in itertools.combinations(seen, len(ids) - 1):
        steps = ends(free, ids.shape[1], eos)
        gap = min(abs(a - b) for a, b in itertools.combinations(steps, 2))
        if min(steps) >= at_least and gap and (best is None or gap > best[0]):
            best = gap, list(eos)
    assert best is not None, "no EOS set ends the rows at different steps: take another prompt seed"
    return best[1]


def states(cache):
    """Length, keys and values of each layer of a Transformers cache, copied."""
    return [
        (layer.get_seq_length(), None, None)
        if layer.keys is None
        else (layer.get_seq_length(), layer.keys.clone(), layer.values.clone())
        for layer in cache.layers
    ]


def assert_same_cache(ours, plain, atol=1e-4):
    """Equal type, layer types, lengths, shapes and values."""
    assert type(ours) is type(plain)
    assert [type(layer) for layer in ours.layers] == [type(layer) for layer in plain.layers]
    for (length, keys, values), (other, theirs, their_values) in zip(states(ours), states(plain), strict=True):
        assert length == other
        assert keys.shape == theirs.shape and values.shape == their_values.shape
        torch.testing.assert_close(keys, theirs, atol=atol, rtol=atol)
        torch.testing.assert_close(values, their_values, atol=atol, rtol=atol)


def toy_tokenizer(swapped=False, **settings):
    """One word per token: `w7` is token 7. `swapped` exchanges the words of two tokens."""
    words = {f"w{i}": i for i in range(VOCABULARY)}
    words["abcdef"] = words.pop("w4")  # Transformers' stop strings look at every token behind this text
    words["<pad>"], words["<bos>"], words["<eos>"] = words.pop("w0"), words.pop("w1"), words.pop("w2")
    if swapped:
        words["w7"], words["w8"] = words["w8"], words["w7"]
    backend = Tokenizer(WordLevel(words, unk_token="w3"))
    backend.pre_tokenizer = WhitespaceSplit()
    special = {
        "pad_token": "<pad>",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "padding_side": "left",
        "unk_token": "w3",
    }
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special, **settings)


class RecordingStreamer(BaseStreamer):
    """Writes down what it is given."""

    def __init__(self):
        self.puts, self.ended = [], 0

    def put(self, value):
        assert not self.ended, "a token after end()"
        assert value.device.type == "cpu"
        self.puts.append(value.clone())

    def end(self):
        self.ended += 1

    def calls(self):
        """Everything as nested lists, shapes included."""
        return [(tuple(value.shape), value.tolist()) for value in self.puts]
