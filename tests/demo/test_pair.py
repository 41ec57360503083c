"""The embedded pair keeps what its model card promises."""

import pytest
import torch

from hf_exactassist.demo import PROMPTS, assistant_path, load_pair, target_path


SAMPLE = """KING.
What say you to the matter, good my lord?
The night is dark, and I have heard it said
That he who walks alone upon the wall
Shall see his father's spirit come again.

LORD.
My gracious liege, I know not what to think:
I saw a light, and heard a heavy step,
And then the cock did crow, and all was still.

KING.
Go, bid the captain come to me. Away!

[Exeunt.]
"""


@pytest.fixture(scope="module")
def pair():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield load_pair()
    torch.set_num_threads(threads)


def test_size_on_disk():
    folders = (target_path(), assistant_path())
    assert sum(path.stat().st_size for folder in folders for path in folder.iterdir()) < 12e6


def test_vocabularies_are_one(pair):
    target, assistant, tokenizer = pair
    assert (target_path() / "tokenizer.json").read_bytes() == (assistant_path() / "tokenizer.json").read_bytes()
    assert target.config.vocab_size == assistant.config.vocab_size == len(tokenizer)
    assert len({tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}) == 3


@pytest.mark.parametrize("folder", [target_path, assistant_path])
def test_tokenizer_loads_from_each_folder_and_round_trips(folder):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder())
    text = "Good  morrow,\n\n\tcousin 🎭!\r\n  What's o'clock ?  \n"
    ids = tokenizer(text)["input_ids"]
    assert ids[0] == tokenizer.bos_token_id
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_generation_config_is_plain_greedy(pair):
    target, assistant, tokenizer = pair
    for model in (target, assistant):
        config = model.generation_config
        assert not config.do_sample
        assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (
            tokenizer.bos_token_id,
            tokenizer.eos_token_id,
            tokenizer.pad_token_id,
        )


def test_dtype_is_the_callers():
    target, assistant, _ = load_pair(torch.bfloat16)
    assert target.dtype == assistant.dtype == torch.bfloat16


@torch.inference_mode()
def test_acceptance_on_a_fixed_text(pair):
    target, assistant, tokenizer = pair
    ids = tokenizer(SAMPLE, return_tensors="pt")["input_ids"]
    p, q = (model(ids).logits.softmax(-1) for model in (target, assistant))
    assert 0.5 < torch.minimum(p, q).sum(-1).mean() < 0.9


def test_greedy_text_does_not_loop(pair):
    target, _, tokenizer = pair
    prompt = tokenizer(PROMPTS[0], return_tensors="pt")
    text = target.generate(**prompt, max_new_tokens=40)[0, prompt["input_ids"].shape[1] :]
    assert len(set(text.tolist())) > 8


def test_prompts_fit_and_differ(pair):
    _, _, tokenizer = pair
    lengths = [len(ids) for ids in tokenizer(list(PROMPTS))["input_ids"]]
    assert len(set(PROMPTS)) == len(PROMPTS) >= 24
    assert min(lengths) < 10 and 100 < max(lengths) < 512
