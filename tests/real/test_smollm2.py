"""Greedy identity on real weights: SmolLM2-135M-Instruct, drafted for by a relative with a noisy head (0x06)."""

import copy
import os
import subprocess

import pytest
import torch

import hf_exactassist


pytestmark = pytest.mark.real

LENGTHS = [1, 4, 8]

PROSE = [
    "The history of the lighthouse begins with",
    "It was late in the evening when the two travellers finally reached the inn, and",
    "Photosynthesis is the process by which plants",
    "The capital of France is",
    "In a distant valley, far from any road, there lived an old clockmaker who had never once been on time.",
    "Dear Ms. Alvarez,\n\nThank you for your letter of 3 March. We regret that",
    "Whereas the parties have agreed on the terms set out below, and whereas",
    "To be, or not to be, that is the question:",
    "Zwei Dinge erfüllen das Gemüt mit immer neuer Bewunderung:",
]
CODE = [
    "def fibonacci(n):\n    ",
    "import json\n\n\ndef load_config(path):\n    with open(path) as file:\n",
    "SELECT name, COUNT(*) FROM orders WHERE",
    "for (int i = 0; i < n; i++) {\n    for (int j = 0; j < n; j++) {\n",
    '{"name": "Ada", "born": 1815, "languages": [',
]
LISTS = [
    "Monday, Tuesday, Wednesday,",
    "1, 1, 2, 3, 5, 8, 13,",
    "Shopping list:\n- eggs\n- milk\n- ",
    "Steps to change a bicycle tyre:\n1. ",
    "a b c a b c a b c a b",
]
QUESTIONS = [
    "What is the boiling point of water?",
    "Write a haiku about rain.",
    "Say only the word yes.",
    "Explain to a child why the sky is blue.",
    "Translate to French: The cat sleeps on the chair.",
]
SYSTEM = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
CHAT = [f"{SYSTEM}<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n" for question in QUESTIONS]
PROMPTS = [*PROSE, *CODE, *LISTS, *CHAT]
# Every sixth prompt, so that each batch mixes kinds and lengths.
BATCHES = [tuple(PROMPTS[start::6]) for start in range(6)]


def test_the_prompts_are_what_the_tests_say(pair):
    """24 different prompts, in batches of four with rows of different lengths; chat as the template writes it."""
    assert len(set(PROMPTS)) == 24
    assert [len(batch) for batch in BATCHES] == [4] * 6
    for batch in BATCHES:
        assert len(set(pair.inputs(batch)["attention_mask"].sum(1).tolist())) > 1
    for question, prompt in zip(QUESTIONS, CHAT, strict=True):
        turns = [{"role": "user", "content": question}]
        written = pair.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        assert written == prompt


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("prompt", PROMPTS, ids=range(len(PROMPTS)))
def test_greedy_identity_of_one_row(pair, prompt, length):
    """Greedy: the tokens of plain `generate`, whatever the draft length."""
    sequences = pair.assisted((prompt,), length).sequences
    assert sequences.tolist() == pair.plain((prompt,)).tolist()


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("batch", BATCHES, ids=range(len(BATCHES)))
def test_greedy_identity_of_a_ragged_batch(pair, batch, length):
    """Rows that accept different numbers of tokens stay what plain `generate` makes of the same left-padded batch."""
    sequences = pair.assisted(batch, length).sequences
    assert sequences.tolist() == pair.plain(batch).tolist()


@pytest.mark.timeout(900)  # alone, it generates all that the identity tests have generated before it otherwise
def test_the_assistant_is_accepted_as_often_as_it_was_made_to_be(pair):
    """About 0.7 of the drafts are right. One token a round, so that every draft follows published tokens only."""
    stats = [pair.assisted((prompt,), 1).assist_stats for prompt in PROMPTS]
    drafted, accepted = sum(each.drafted for each in stats), sum(each.accepted for each in stats)
    assert 0.5 < accepted / drafted < 0.9, (accepted, drafted)


def test_longer_drafts_are_accepted_in_part(pair):
    """Drafts of several tokens are really judged: some of them kept, some of them not, in every batch."""
    for batch in BATCHES:
        stats = pair.assisted(batch, 4).assist_stats
        assert 0 < stats.accepted < stats.drafted, batch


def test_the_command_prints_text(target_folder, draft_folder, command):
    """`exactassist generate` runs on two checkpoints from disk."""
    prompt = "The history of the lighthouse begins with"
    arguments = ["generate", "--target", target_folder, "--assistant", draft_folder, "--max-new-tokens", "16", prompt]
    done = subprocess.run(
        [command, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.replace(prompt, "")
    assert sum(letter.isalpha() for letter in said) >= 16, done.stdout


def test_half_precision_differs_at_near_ties_alone(pair):
    """In bfloat16 a block rounds otherwise than single tokens; where texts part, rounding chose (user report A88)."""
    target, draft = (copy.deepcopy(model).to(torch.bfloat16) for model in (pair.target, pair.draft))
    settings = {"do_sample": False, "max_new_tokens": 32, "return_dict_in_generate": True}
    same, ties = 0, 0
    for prompt in PROMPTS[::4]:
        inputs = pair.inputs((prompt,))
        plain = target.generate(**inputs, **settings, output_scores=True)
        ours = hf_exactassist.generate(target, **inputs, **settings, assistant_model=draft)
        assert ours.assist_stats.serial is None
        start = inputs["input_ids"].shape[1]
        texts = (ours.sequences[0, start:].tolist(), plain.sequences[0, start:].tolist())
        parted = next((i for i, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), None)
        same += parted is None
        ties += ours.assist_stats.near_ties
        if parted is not None:
            # the other path has rounded too: what it saw as near may look a little farther from here
            best, second = plain.scores[parted][0].topk(2).values.tolist()
            assert best - second <= 4 * torch.finfo(torch.bfloat16).eps * abs(best)
            assert ours.assist_stats.near_ties
    assert ties, "no text came near a tie"
    print(f"{same} of {len(PROMPTS[::4])} texts are those of plain `generate`, {ties} near ties")
