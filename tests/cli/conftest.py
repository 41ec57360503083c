"""A tiny pair with a tokenizer of its own, saved as anyone would save it, and a way to call the command."""

import copy
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from typer.testing import CliRunner

from hf_exactassist.cli import app
from hf_exactassist.session import Session


TEXT = [
    "the king is dead and the night is long",
    "who goes there a friend of the king",
    "long live the queen of night",
]
TEMPLATE = (
    "<bos>{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<answer>{% endif %}"
)


@dataclass(frozen=True)
class Folders:
    """Checkpoints on disk."""

    target: Path
    assistant: Path

    @property
    def arguments(self) -> list[str]:
        return ["--target", str(self.target), "--assistant", str(self.assistant)]


def make_tokenizer(extra: str = "", template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<eos>", "<bos>"], initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator([text + extra for text in TEXT], trainer)
    # a start token that chat templates write themselves, as many do
    inner.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>", bos_token="<bos>")
    tokenizer.chat_template = template
    return tokenizer


def make_target(vocabulary: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=vocabulary, **sizes, max_position_embeddings=256, initializer_range=0.3)
    model = LlamaForCausalLM(config).eval()
    model.generation_config.bos_token_id, model.generation_config.eos_token_id = None, 0
    return model


def make_relative(target: LlamaForCausalLM, noise: float = 0.02) -> LlamaForCausalLM:
    """A copy that agrees with its target often and not always."""
    torch.manual_seed(1)
    model = copy.deepcopy(target)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += noise * torch.randn_like(parameter)
    return model


@pytest.fixture(scope="session")
def folders(tmp_path_factory) -> Folders:
    root = tmp_path_factory.mktemp("pair")
    tokenizer = make_tokenizer()
    target = make_target(len(tokenizer))
    for name, model in (("target", target), ("assistant", make_relative(target))):
        model.save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
    return Folders(root / "target", root / "assistant")


@pytest.fixture(scope="session")
def foreign(tmp_path_factory) -> Path:
    """A model with other tokens and no chat template."""
    folder = tmp_path_factory.mktemp("foreign")
    tokenizer = make_tokenizer(extra=" zebra zebra zoo", template=None)
    make_target(len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def lowercasing(foreign, tmp_path_factory) -> Path:
    """The same with a tokenizer that changes text."""
    folder = tmp_path_factory.mktemp("lowercasing") / "model"
    shutil.copytree(foreign, folder)
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace('"normalizer": null', '"normalizer": {"type": "Lowercase"}'))
    return folder


@pytest.fixture(scope="session")
def plain(folders):
    """`plain(prompt, **settings)`: new tokens of Transformers' own `generate`."""
    model = AutoModelForCausalLM.from_pretrained(folders.target)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folders.target)

    def run(prompt: str, **settings) -> list[int]:
        inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
        return model.generate(**inputs, pad_token_id=0, **settings)[0, inputs["input_ids"].shape[1] :].tolist()

    return run


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.delenv("EXACTASSIST_DEBUG", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass(frozen=True)
class Outcome:
    """What a call of the command did."""

    code: int
    out: str
    err: str
    exception: BaseException | None

    @property
    def objects(self) -> list[dict]:
        """Standard output as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def exactassist():
    """`exactassist(*arguments, stdin=...)` calls the command in this process."""

    def run(*arguments, stdin: str | bytes | None = None) -> Outcome:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)
        return Outcome(result.exit_code, result.stdout, result.stderr, result.exception)

    return run


@pytest.fixture
def tiny_embedded(folders, monkeypatch):
    """Lets the tiny pair stand in for the embedded one."""
    monkeypatch.setattr("hf_exactassist.demo.target_path", lambda: folders.target)
    monkeypatch.setattr("hf_exactassist.demo.assistant_path", lambda: folders.assistant)


@pytest.fixture
def wrong_texts(monkeypatch):
    """Assisted texts end with another token than they should."""
    result = Session.result

    def broken(session):
        output = result(session)
        getattr(output, "sequences", output)[0, -1] += 1
        return output

    monkeypatch.setattr(Session, "result", broken)
