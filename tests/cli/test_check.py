"""`exactassist check`: admitted or not, how, and why not."""

import json
import shutil


def test_an_admitted_pair(exactassist, folders):
    done = exactassist("check", *folders.arguments, "--json")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert report["admitted"] and report["reasons"] == []
    for role in ("target", "assistant"):
        model = report[role]
        assert (model["class"], model["attention"], model["masks"]) == ("LlamaForCausalLM", "sdpa", "boolean 4-D")
        assert (model["cache_layers"], model["head_size"], model["dtype"]) == ({"full attention": 2}, 300, "float32")
    coverage = report["tokens"].pop("coverage")
    assert report["tokens"] == {
        "compared": "tokenizers", "same_map": True, "shared": 300, "of": 300,
        "mapped": False, "not_mapped": [], "reason": "",
    }  # fmt: skip
    assert report["parameter_ratio"] == 1.0
    assert 0.3 < coverage.pop("expected_acceptance") < 0.999 and coverage.pop("positions") == 64
    assert list(coverage) == ["mapped_mass", "assistant_mass", "assistant_exact_mass"]
    assert all(abs(mass - 1) < 1e-5 for mass in coverage.values())


def test_the_same_as_text(exactassist, folders):
    done = exactassist("check", *folders.arguments, "--attn-implementation", "eager")
    assert done.code == 0, done.err
    assert "The pair is admitted" in done.out and done.err == ""
    for part in ("eager", "additive 4-D", "2 x full attention", "the same map, 300 of 300 target tokens", "ratio: 1 "):
        assert part in done.out


def test_embedded_pair_is_the_default(exactassist, tiny_embedded):
    done = exactassist("check", "--json")
    assert json.loads(done.out)["assistant"]["name"] == "embedded"


def test_a_target_alone(exactassist, folders):
    done = exactassist("check", "--target", folders.target)
    assert done.code == 0, done.err
    assert "--prompt-lookup" in done.out and "The target is admitted" in done.out
    assert json.loads(exactassist("check", "--target", folders.target, "--json").out)["assistant"] is None


def test_another_tokenizer_is_mapped_and_said_so(exactassist, folders, foreign):
    """Row 4, A37: equal sizes say nothing."""
    done = exactassist("check", "-t", folders.target, "-a", foreign, "--json")
    report = json.loads(done.out)
    assert (done.code, report["admitted"], report["tokens"]["mapped"]) == (0, True, True)
    assert 200 < report["tokens"]["shared"] < 300 and " zebra" in report["tokens"]["not_mapped"]
    coverage = report["tokens"]["coverage"]
    assert coverage["mapped_mass"] < 1 and coverage["assistant_exact_mass"] < coverage["assistant_mass"] <= 1.00001
    text = exactassist("check", "-t", folders.target, "-a", foreign)
    assert "another tokenizer, " in text.out and "' zebra'" in text.out
    assert f"Coverage: {coverage['mapped_mass']:.1%} of the target's" in text.out
    assert f"Expected acceptance: {coverage['expected_acceptance']:.1%} of first draft tokens" in text.out


def test_coverage_is_measured_on_the_users_text(exactassist, folders, tmp_path):
    arguments = ("check", *folders.arguments, "--json")
    (tmp_path / "short").write_text("who goes")
    short = json.loads(exactassist(*arguments, "--text", tmp_path / "short").out)["tokens"]["coverage"]
    assert 1 < short["positions"] < 10
    # what stands behind the first 2000 characters is not read, whatever it is
    beginning = ("the king is long " * 118)[:2000].encode()
    found = []
    for name, end in (("long", b"\xff\xfe" * 5000), ("exact", b"")):
        (tmp_path / name).write_bytes(beginning + b" " * 16000 + end)
        found.append(json.loads(exactassist(*arguments, "--text", tmp_path / name).out)["tokens"]["coverage"])
    assert found[0] == found[1] != short


def test_a_text_that_cannot_be_read_is_refused_before_any_model(exactassist, tmp_path):
    for name, content in (("empty", b""), ("blank", b" \n\t"), ("binary", b"\xff\xfea")):
        (tmp_path / name).write_bytes(content)
    for name, message in (
        ("empty", "has no text in its first 2000 characters"),
        ("blank", "has no text in its first 2000 characters"),
        ("binary", "is not UTF-8 text"),
        ("missing", "Cannot read"),
        (".", "Cannot read"),
    ):
        done = exactassist("check", "-t", "./missing", "-a", "./missing", "--text", tmp_path / name)
        assert (done.code, done.out) == (2, "") and message in done.err and done.err.count("\n") == 1
    alone = exactassist("check", "-t", "./missing", "--text", tmp_path / "blank")
    assert alone.code == 2 and "name an --assistant" in alone.err


def test_a_tokenizer_that_changes_text_is_refused_with_an_example(exactassist, folders, lowercasing):
    done = exactassist("check", "-t", folders.target, "-a", lowercasing, "--json")
    report = json.loads(done.out)
    assert (done.code, report["admitted"], report["tokens"]["shared"]) == (1, False, 0)
    assert report["target"]["admitted"] and report["assistant"]["admitted"]
    assert "'The Quick brown " in report["reasons"][0] and report["reasons"] == [report["tokens"]["reason"]]
    assert report["tokens"]["coverage"] is None
    text = exactassist("check", "-t", folders.target, "-a", lowercasing)
    assert text.code == 1 and "Coverage" not in text.out
    assert "The pair is not admitted." in text.out and report["reasons"][0] in text.out


def test_an_assistant_without_tokenizer_is_compared_by_size(exactassist, folders, tmp_path):
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        shutil.copy(folders.assistant / name, tmp_path / name)
    done = exactassist("check", "-t", folders.target, "-a", tmp_path)
    assert done.code == 0, done.err
    assert "no tokenizer for the assistant: only the heads' sizes and special tokens were compared" in done.out
    assert "Expected acceptance: " in done.out


def test_folders_without_a_tokenizer(exactassist, folders, tmp_path):
    """Nothing but the comparison of tokens needs one."""
    for role in ("target", "assistant"):
        (tmp_path / role).mkdir()
        for name in ("config.json", "generation_config.json", "model.safetensors"):
            shutil.copy(getattr(folders, role) / name, tmp_path / role / name)
    alone = exactassist("check", "-t", tmp_path / "target")
    assert alone.code == 0, alone.err
    assert "The target is admitted" in alone.out and "`exactassist generate` needs the target's tokenizer" in alone.out
    both = ("-t", tmp_path / "target", "-a", tmp_path / "assistant")
    done = exactassist("check", *both)
    assert done.code == 0, done.err
    assert "no tokenizer for the target and the assistant: only the heads' sizes" in done.out
    assert "Coverage" not in done.out
    report = json.loads(exactassist("check", *both, "--json").out)
    assert report["tokens"]["coverage"] is None
    assert report["tokens"]["compared"] == "head sizes and special tokens" and not report["target"]["tokenizer"]
    assert json.loads(exactassist("check", *folders.arguments, "--json").out)["target"]["tokenizer"]
    refused = exactassist("generate", *both, "who")
    assert refused.code == 1 and "save it beside the model with `tokenizer.save_pretrained`" in refused.err


def test_a_recurrent_model_is_run_row_by_row_or_serially(exactassist, folders, tmp_path):
    from transformers import MambaConfig, MambaForCausalLM, PreTrainedTokenizerFast

    sizes = {"hidden_size": 16, "state_size": 4, "num_hidden_layers": 1, "intermediate_size": 32, "time_step_rank": 2}
    MambaForCausalLM(MambaConfig(vocab_size=300, **sizes)).save_pretrained(tmp_path)
    PreTrainedTokenizerFast.from_pretrained(folders.target).save_pretrained(tmp_path)
    done = exactassist("check", "-t", tmp_path, "-a", folders.assistant, "--json")
    report = json.loads(done.out)
    assert (done.code, report["target"]["admitted"], report["assistant"]["admitted"]) == (0, True, True)
    strategy = report["target"]["strategy"]
    assert strategy in ("row by row", "serial") and "recurrent state" in report["target"]["reason"]
    # nothing is drafted for what drafts cannot help
    assert (report["tokens"]["coverage"] is None) == (strategy == "serial")
    text = exactassist("check", "-t", tmp_path, "-a", folders.assistant)
    assert f"The target runs {strategy}" in text.out and "recurrent state" in text.out
    continued = exactassist("generate", "-t", tmp_path, "-a", folders.assistant, "-n", "4", "who")
    assert continued.code == 0 and continued.out


def test_saved_settings_that_cannot_be_kept(exactassist, folders, tmp_path):
    shutil.copytree(folders.target, tmp_path / "beams")
    path = tmp_path / "beams" / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_beams": 4}))
    done = exactassist("check", "-t", tmp_path / "beams", "-a", folders.assistant)
    assert done.code == 1
    assert "generation settings saved with the models" in done.out and "beam_search" in done.out
    refused = exactassist("generate", "-t", tmp_path / "beams", "-a", folders.assistant, "who")
    assert refused.code == 1 and "beam_search" in refused.err


def test_attention_paths_without_ready_masks(exactassist, folders):
    """Rows run alone where the path works here at all."""
    done = exactassist("check", *folders.arguments, "--attn-implementation", "flex_attention")
    assert done.code == 1 or "runs row by row" in done.out
    assert "flex_attention" in done.out + done.err and "Traceback" not in done.err


def test_an_attention_path_that_is_not_supported(exactassist, folders):
    done = exactassist("check", *folders.arguments, "--attn-implementation", "nonsense")
    assert done.code == 1
    assert "nonsense" in done.out + done.err and "Traceback" not in done.err


def test_a_missing_model_is_one_line(exactassist):
    done = exactassist("check", "--target", "./missing")
    assert (done.code, done.out) == (1, "")
    assert "does not exist" in done.err and done.err.count("\n") == 1


def test_models_that_agree_on_no_special_token_are_refused_without_tokenizers(exactassist, folders, tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 256}
    GPT2LMHeadModel(GPT2Config(vocab_size=300, bos_token_id=7, eos_token_id=8, **sizes)).save_pretrained(tmp_path)
    done = exactassist("check", "-t", folders.target, "-a", tmp_path)
    assert done.code == 1 and "Tokens: not shared" in done.out and "agree on no special token" in done.out
    shutil.copy(folders.target / "tokenizer.json", tmp_path / "tokenizer.json")
    shutil.copy(folders.target / "tokenizer_config.json", tmp_path / "tokenizer_config.json")
    assert exactassist("check", "-t", folders.target, "-a", tmp_path).code == 0
