"""Decoders that attend to an encoder: T5, BART, M2M100, BERT pairs, Whisper (contract 0x06B; upstream rows 12 and 13;
user reports A13, A73, A74, A79, A80, A93).
"""

import copy

import pytest
import torch
import transformers as hf
from transformers import GenerationConfig

import hf_exactassist
from hf_exactassist import InvalidArgument, UnsupportedArgument
from hf_exactassist.models import compat
from hf_exactassist.verification.enumeration import total_variation
from tests.exactness.walk import law
from tests.tiny import noisy, prompts
from tests.tiny import tiny as tiny_decoder
from tests.tiny_encoder_decoder import KINDS, VOCABULARY, audio, sentences, tiny, whisper, whisper_decoder


# the penalty keeps tiny models from saying one word for ever
GREEDY = {"do_sample": False, "eos_token_id": None, "max_new_tokens": 24, "repetition_penalty": 1.5}
SEEDS = {"t5": 3, "bart": 3, "m2m_100": 1, "marian": 3}
NOISE = {"t5": 0.03, "bart": 0.03, "m2m_100": 0.1, "marian": 0.1}
LENGTHS = [9, 5, 12]


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def target(kind):
    return tiny(kind, SEEDS[kind])


@pytest.fixture(scope="module")
def t5():
    return tiny("t5", SEEDS["t5"])


def row_of(output, row=0):
    return tuple(output[row].tolist())


def mixed(stats):
    return 0 < stats.accepted < stats.drafted and stats.rounds > 2


@pytest.mark.parametrize("layout", ["replay", "retained"])
@pytest.mark.parametrize("k", [1, 4, 8])
@pytest.mark.parametrize("lengths", [[9], LENGTHS])
def test_greedy_tokens_are_plain(kind, target, lengths, k, layout):
    inputs = sentences(lengths)
    plain = target.generate(**inputs, **GREEDY)
    settings = {"num_assistant_tokens": k, "layout": layout, "return_dict_in_generate": True}
    output = hf_exactassist.generate(
        target, **inputs, **GREEDY, **settings, assistant_model=noisy(target, NOISE[kind])
    )
    assert output.sequences.tolist() == plain.tolist()
    assert len(set(plain[0].tolist())) > 4 and mixed(output.assist_stats)


def test_rows_end_at_their_own_eos(target):
    inputs = sentences(LENGTHS)
    free = target.generate(**inputs, **GREEDY)
    settings = {**GREEDY, "eos_token_id": [int(free[0, 8]), int(free[2, 5])]}
    plain = target.generate(**inputs, **settings)
    ours = hf_exactassist.generate(target, **inputs, **settings, assistant_model=noisy(target, 0.03))
    assert ours.tolist() == plain.tolist()


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("kind", ["t5", "whisper"])
def test_sampled_tokens_are_plain_under_shared_noise(kind, copies):
    """Every row is the row plain sampling draws, also where prompts are given to several rows."""
    model = whisper() if kind == "whisper" else tiny(kind, SEEDS[kind])
    inputs = {"input_features": audio(2)} if kind == "whisper" else sentences([9, 5])
    settings = {"do_sample": True, "max_new_tokens": 12, "num_return_sequences": copies, "temperature": 0.8}
    torch.manual_seed(7)
    plain = model.generate(**inputs, **settings)
    torch.manual_seed(7)
    ours = hf_exactassist.generate(
        model, **inputs, **settings, assistant_model=noisy(model, 0.02), coupling="shared_noise"
    )
    assert ours.tolist() == plain.tolist() and len(set(map(tuple, plain.tolist()))) == 2 * copies


# --- laws, every random choice walked ---


LAW = {"do_sample": True, "max_new_tokens": 3, "top_k": 0}


def small(model):
    """A model of four words."""
    return model(vocab_size=5, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=3)


@pytest.mark.parametrize("eos", [None, 2])
@pytest.mark.parametrize("shared", [False, True])
def test_law_with_an_encoder(shared, eos):
    target = small(lambda **ids: tiny("t5", 3, **ids))
    assistant = noisy(target, 0.3)
    if shared:
        assistant.encoder = target.encoder
    inputs, settings = sentences([4], vocabulary=5), {**LAW, "eos_token_id": eos}
    plain = law(lambda: row_of(target.generate(**inputs, **settings)))
    ours = law(lambda: row_of(hf_exactassist.generate(target, **inputs, **settings, assistant_model=assistant)))
    assert len(plain) > 8 and total_variation(plain, ours) < 1e-6


@pytest.mark.parametrize("alone", [False, True])
def test_law_of_whisper_at_a_temperature(alone):
    """Upstream drafts greedily there and judges as if it had drawn: off by 0.11 to 0.44."""
    target = small(lambda **ids: whisper(timestamps=5, **ids))
    assistant = noisy(whisper_decoder(target) if alone else target, 0.3)
    # its `generate` fails on texts of padding alone
    target.generation_config.suppress_tokens = [0]
    inputs, settings = {"input_features": audio()}, {**LAW, "temperature": 0.8}
    plain = law(lambda: row_of(target.generate(**inputs, **settings)))
    ours = law(lambda: row_of(hf_exactassist.generate(target, **inputs, **settings, assistant_model=assistant)))
    assert len(plain) > 8 and total_variation(plain, ours) < 1e-6


# --- kinds of assistants ---


def test_assistant_of_another_width_reads_the_text_itself(t5):
    assistant = tiny("t5", 5, d_model=16, d_kv=4)
    inputs, read = sentences(LENGTHS), []
    for model in (t5, assistant):
        model.encoder.register_forward_hook(lambda module, args, output: read.append(module))
    hf_exactassist.generate(t5, **inputs, **GREEDY, assistant_model=assistant)
    read.clear()
    plain = t5.generate(**inputs, **GREEDY)
    read.clear()
    ours = hf_exactassist.generate(t5, **inputs, **GREEDY, assistant_model=assistant)
    assert ours.tolist() == plain.tolist()
    assert read == [t5.encoder, assistant.encoder], "each encoder reads once"
    for model in (t5, assistant):
        model.encoder._forward_hooks.clear()


def test_shared_encoder_reads_once(t5):
    assistant = noisy(t5, 0.03)
    assistant.encoder = t5.encoder
    inputs, read = sentences(LENGTHS), []
    hf_exactassist.generate(t5, **inputs, **GREEDY, assistant_model=assistant)
    handle = t5.encoder.register_forward_hook(lambda module, args, output: read.append(module))
    hf_exactassist.generate(t5, **inputs, **GREEDY, assistant_model=assistant)
    read.clear()
    ours = hf_exactassist.generate(t5, **inputs, **GREEDY, assistant_model=assistant)
    handle.remove()
    assert ours.tolist() == t5.generate(**inputs, **GREEDY).tolist() and len(read) == 1


def test_assistant_without_an_encoder(t5):
    inputs = sentences(LENGTHS)
    ours = hf_exactassist.generate(t5, **inputs, **GREEDY, assistant_model=tiny_decoder("gpt2"))
    assert ours.tolist() == t5.generate(**inputs, **GREEDY).tolist()


def test_prompt_lookup(t5):
    inputs = sentences(LENGTHS)
    settings = {**GREEDY, "repetition_penalty": 1.0}
    ours = hf_exactassist.generate(t5, **inputs, **settings, prompt_lookup_num_tokens=3, return_dict_in_generate=True)
    assert ours.sequences.tolist() == t5.generate(**inputs, **settings).tolist() and ours.assist_stats.accepted


def test_pair_of_berts():
    bert = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 64,
        "initializer_range": 0.3,
    }
    torch.manual_seed(0)
    config = hf.EncoderDecoderConfig.from_encoder_decoder_configs(hf.BertConfig(**bert), hf.BertConfig(**bert))
    model = hf.EncoderDecoderModel(config=config).eval()
    model.generation_config = GenerationConfig(decoder_start_token_id=3, pad_token_id=0)
    inputs = sentences(LENGTHS)
    output = hf_exactassist.generate(
        model, **inputs, **GREEDY, assistant_model=noisy(model, 0.1), return_dict_in_generate=True
    )
    assert output.sequences.tolist() == model.generate(**inputs, **GREEDY).tolist()
    assert mixed(output.assist_stats)


def test_assistant_that_prefers_padding(t5):
    """Upstream crashes on it (row 13)."""
    assistant = noisy(t5, 0.05)
    head = assistant.get_output_embeddings()
    head.register_forward_hook(lambda module, args, output: output + 3 * torch.eye(VOCABULARY)[0])
    inputs, settings = sentences(LENGTHS), {**GREEDY, "max_new_tokens": 12}
    plain = t5.generate(**inputs, **settings)
    assert hf_exactassist.generate(t5, **inputs, **settings, assistant_model=assistant).tolist() == plain.tolist()
    hf_exactassist.generate(t5, **inputs, do_sample=True, max_new_tokens=8, assistant_model=assistant)


def test_padding_token_inside_the_text():
    """M2M100 counts positions without it, so a block that holds one is read in two."""
    model = tiny("m2m_100", 7)
    head = model.get_output_embeddings()
    head.register_forward_hook(lambda module, args, output: output + 4 * torch.eye(VOCABULARY)[0])
    inputs, settings = sentences(LENGTHS), {**GREEDY, "repetition_penalty": 2.0}
    plain = model.generate(**inputs, **settings)
    assistant = noisy(model, 0.05)
    output = hf_exactassist.generate(model, **inputs, **settings, assistant_model=assistant, num_assistant_tokens=8)
    assert output.tolist() == plain.tolist()
    assert any(0 in row[1:-4] and any(row[row.index(0, 1) :]) for row in plain.tolist()), "no padding inside a text"


# --- what is read and returned ---


def test_decoder_prompts_of_unequal_length(t5):
    """User report A13."""
    inputs, starts = sentences(LENGTHS), prompts([3, 1, 4])
    starts["input_ids"][starts["attention_mask"] == 1] += 1
    # else `generate` puts a start token in front of everything
    starts["input_ids"][:, 0] = 0
    decoder = {"decoder_input_ids": starts["input_ids"], "decoder_attention_mask": starts["attention_mask"]}
    settings = {**GREEDY, "decoder_start_token_id": 0}
    plain = t5.generate(**inputs, **decoder, **settings)
    ours = hf_exactassist.generate(t5, **inputs, **decoder, **settings, assistant_model=noisy(t5, 0.03))
    assert ours.tolist() == plain.tolist()


def test_outputs_are_those_of_plain_generate(target):
    inputs = sentences([9])
    settings = {**GREEDY, "return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    plain = target.generate(**inputs, **settings)
    ours = hf_exactassist.generate(target, **inputs, **settings, assistant_model=noisy(target, 0.03))
    assert isinstance(ours, type(plain)) and list(ours) == list(plain)
    torch.testing.assert_close(torch.stack(ours.scores), torch.stack(plain.scores), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(torch.stack(ours.logits), torch.stack(plain.logits), atol=1e-4, rtol=1e-4)
    for part in ("self_attention_cache", "cross_attention_cache"):
        mine, theirs = (getattr(getattr(output, compat.CACHE_FIELD), part) for output in (ours, plain))
        for layer, other in zip(mine.layers, theirs.layers, strict=True):
            # cross-attention too: rejected drafts take nothing from it (user report A73)
            torch.testing.assert_close(layer.keys, other.keys, atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(layer.values, other.values, atol=1e-4, rtol=1e-4)


def test_no_forward_reads_more_than_a_round(t5):
    """User report A74: what is known is not read again."""
    widths, k = [], 4
    handle = t5.decoder.register_forward_pre_hook(
        lambda module, args, kwargs: widths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    inputs, assistant = sentences(LENGTHS), noisy(t5, 0.03)
    hf_exactassist.generate(t5, **inputs, **GREEDY, assistant_model=assistant, num_assistant_tokens=k)
    handle.remove()
    assert max(widths) == k + 1


def test_nothing_of_the_callers_is_changed(t5):
    assistant, audible = noisy(t5, 0.03), whisper()
    models = [t5, assistant, audible, whisper_decoder(audible)]
    before = [(copy.deepcopy(model.generation_config), model.config.to_dict(), set(vars(model))) for model in models]
    hf_exactassist.generate(t5, **sentences(LENGTHS), **GREEDY, assistant_model=assistant)
    hf_exactassist.generate(audible, audio(), max_new_tokens=8, do_sample=False, assistant_model=models[3])
    with pytest.raises(RuntimeError, match="stop here"):
        hf_exactassist.generate(t5, **sentences([5]), **GREEDY, assistant_model=assistant, logits_processor=[_raising])
    for model, (config, settings, names) in zip(models, before, strict=True):
        assert model.generation_config == config and model.config.to_dict() == settings and set(vars(model)) == names
        assert not any(module._forward_hooks for module in model.modules())


def _raising(input_ids, scores):
    if input_ids.shape[1] > 4:
        raise RuntimeError("stop here")
    return scores


# --- Whisper ---


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("timestamps", [False, True])
@pytest.mark.parametrize("assistant", ["own encoder", "same encoder", "decoder alone"])
def test_whisper_transcribes_the_same(assistant, timestamps, rows):
    target = whisper()
    if assistant == "decoder alone":
        drafter = noisy(whisper_decoder(target), 0.05)
    else:
        drafter = noisy(target, 0.05)
        if assistant == "same encoder":
            drafter.model.encoder = target.model.encoder
    settings = {"do_sample": False, "max_new_tokens": 24, "return_timestamps": timestamps}
    plain = target.generate(audio(rows), **settings)
    ours = hf_exactassist.generate(target, audio(rows), **settings, assistant_model=drafter)
    assert ours.tolist() == plain.tolist()


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize(
    "settings",
    [
        {"return_timestamps": True},
        {"return_timestamps": True, "condition_on_prev_tokens": True},
        {
            "return_timestamps": True,
            "temperature": (0.0, 0.6, 1.0),
            "logprob_threshold": -1.0,
            "compression_ratio_threshold": 1.0,
            "no_speech_threshold": 0.4,
        },
    ],
    ids=["timestamps", "conditioned", "fallback"],
)
def test_whisper_transcribes_long_audio_the_same(rows, settings):
    """Stretch by stretch, in batches that shrink, with fallback to higher temperatures."""
    target, heard = whisper(), audio(rows, stretches=4)
    mask = torch.ones(rows, heard.shape[-1], dtype=torch.long)
    mask[-1, 130:] = 0
    settings = {**settings, "attention_mask": mask, "return_segments": True, "max_new_tokens": 14}
    torch.manual_seed(3)
    plain = target.generate(heard, **settings)
    assistant = noisy(whisper_decoder(target), 0.05)
    torch.manual_seed(3)
    ours = hf_exactassist.generate(target, heard, **settings, assistant_model=assistant, coupling="shared_noise")
    assert ours["sequences"].tolist() == plain["sequences"].tolist()
    starts = [[[float(part["start"]) for part in row] for row in output["segments"]] for output in (ours, plain)]
    assert starts[0] == starts[1] and len(starts[0][0]) > 1
    # of all stretches and attempts
    stats = ours.pop("assist_stats")
    assert ours.keys() == plain.keys() and stats.serial is None and stats.drafted and stats.rounds > len(starts[0][0])


def test_whisper_counts_beside_times_of_words():
    target, assistant = whisper(), noisy(whisper(), 0.05)
    target.generation_config.alignment_heads = [[0, 0], [1, 1]]
    target.set_attn_implementation("eager")
    settings = {"do_sample": False, "max_new_tokens": 12, "return_token_timestamps": True, "return_timestamps": True}
    plain = target.generate(audio(), **settings)
    ours = hf_exactassist.generate(target, audio(), **settings, assistant_model=assistant)
    assert ours.pop("assist_stats").accepted
    assert {name: value.tolist() for name, value in ours.items()} == {name: v.tolist() for name, v in plain.items()}


def test_whisper_counts_all_stretches():
    target = whisper()
    output = hf_exactassist.generate(
        target,
        audio(),
        do_sample=False,
        max_new_tokens=12,
        return_dict_in_generate=True,
        assistant_model=noisy(target, 0.05),
    )
    stats = output.assist_stats
    assert "assist_stats" not in output and stats.published >= 12 and stats.accepted and stats.draft_forwards
    assert stats.drafted == sum(stats.drafted_by_position)


def test_a_seed_fixes_all_stretches_and_none_repeats_another():
    target, heard = whisper(), audio(1, stretches=1).repeat(1, 1, 3)
    assistant = noisy(whisper_decoder(target), 0.05)
    settings = {"do_sample": True, "temperature": 1.5, "return_timestamps": True, "return_segments": True}
    calls = [
        hf_exactassist.generate(target, heard, **settings, assistant_model=assistant, seed=seed, max_new_tokens=10)
        for seed in (1, 1, 2)
    ]
    texts = [[part["tokens"].tolist() for part in output["segments"][0]] for output in calls]
    assert texts[0] == texts[1] != texts[2]
    assert len(set(map(tuple, texts[0]))) > 1


# --- what is refused ---


@pytest.mark.parametrize("odd", [{"num_mel_bins": 4}, {"max_source_positions": 20}])
def test_audio_that_the_assistants_encoder_cannot_read_is_refused(odd):
    with pytest.raises(InvalidArgument, match="cannot read the .*input_features"):
        hf_exactassist.generate(whisper(), audio(), max_new_tokens=4, assistant_model=whisper(**odd))


def test_words_that_the_assistants_encoder_does_not_know_are_refused(t5):
    with pytest.raises(InvalidArgument, match="cannot read the .*input_ids"):
        hf_exactassist.generate(t5, **sentences([9]), **GREEDY, assistant_model=tiny("t5", vocab_size=20))


def test_assistant_in_half_precision_reads_the_targets_audio():
    target = whisper()
    plain = target.generate(audio(), max_new_tokens=12, do_sample=False)
    assistant = noisy(target, 0.02).to(torch.bfloat16)
    ours = hf_exactassist.generate(target, audio(), max_new_tokens=12, do_sample=False, assistant_model=assistant)
    assert ours.tolist() == plain.tolist()


def test_encoder_of_another_width_is_refused():
    assistant = whisper_decoder(whisper(d_model=16))
    with pytest.raises(InvalidArgument, match="width 16"):
        hf_exactassist.generate(whisper(), audio(), assistant_model=assistant)


def test_assistant_with_an_encoder_is_refused_for_a_decoder(t5):
    with pytest.raises(InvalidArgument, match="decoder alone"):
        hf_exactassist.generate(tiny_decoder(), **prompts([4]), assistant_model=t5)


def test_encoder_outputs_alone_are_refused_where_the_assistant_must_read_the_text(t5):
    inputs = sentences([5])
    given = {"encoder_outputs": t5.encoder(**inputs), "attention_mask": inputs["attention_mask"]}
    with pytest.raises(UnsupportedArgument, match="`encoder_outputs`"):
        hf_exactassist.generate(t5, **given, **GREEDY, assistant_model=noisy(t5, 0.03))
    shared = noisy(t5, 0.03)
    shared.encoder = t5.encoder
    ours = hf_exactassist.generate(t5, **given, **GREEDY, assistant_model=shared)
    assert ours.tolist() == t5.generate(**inputs, **GREEDY).tolist()


def test_sessions_and_row_ids_are_refused_for_whisper():
    target = whisper()
    with pytest.raises(UnsupportedArgument, match="Sessions"):
        hf_exactassist.start(target, audio(), assistant_model=noisy(target, 0.05))
    with pytest.raises(UnsupportedArgument, match="row_ids"):
        hf_exactassist.generate(target, audio(), assistant_model=noisy(target, 0.05), row_ids=[4])


def test_sessions_step_through_an_encoder_decoder(t5):
    inputs = sentences(LENGTHS)
    session = hf_exactassist.start(t5, **inputs, **GREEDY, assistant_model=noisy(t5, 0.03))
    tokens = {row: [] for row in range(3)}
    for row, token in session:
        tokens[row].append(token)
    plain = t5.generate(**inputs, **GREEDY)
    assert session.result().tolist() == plain.tolist() and tokens[1] == plain[1, 1:].tolist()


# --- hidden states and attentions of rows that are read one by one ---


def parts_of(output):
    """Every tensor of hidden states and attentions, by key and place."""

    def flat(value, place):
        if isinstance(value, torch.Tensor):
            return {place: value}
        return {key: part for i, inner in enumerate(value or ()) for key, part in flat(inner, (*place, i)).items()}

    kinds = [key for key in output if "hidden" in key or "attentions" in key]
    return {key: part for kind in kinds for key, part in flat(output[kind], (kind,)).items()}


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("lengths", [[9], LENGTHS])
def test_hidden_states_and_attentions_are_plain(kind, lengths, attention):
    target = tiny(kind, SEEDS[kind])
    target.set_attn_implementation(attention)
    settings = {**GREEDY, "output_hidden_states": True, "output_attentions": True, "return_dict_in_generate": True}
    plain = target.generate(**sentences(lengths), **settings)
    ours = hf_exactassist.generate(target, **sentences(lengths), **settings, assistant_model=noisy(target, 0.03))
    assert mixed(ours.assist_stats)
    mine, theirs = parts_of(ours), parts_of(plain)
    assert mine.keys() == theirs.keys() and len(theirs) > 24
    for key, part in theirs.items():
        torch.testing.assert_close(mine[key], part, atol=1e-4, rtol=1e-4, msg=lambda text, key=key: f"{key}: {text}")


def test_whisper_finds_the_times_of_words():
    target = whisper()
    target.generation_config.alignment_heads = [[0, 0], [1, 2]]
    settings = {"return_timestamps": True, "return_token_timestamps": True, "max_new_tokens": 20, "do_sample": False}
    plain = target.generate(audio(), **settings)
    assistant = noisy(whisper_decoder(target), 0.05)
    ours = hf_exactassist.generate(target, audio(), **settings, assistant_model=assistant)
    assert ours["sequences"].tolist() == plain["sequences"].tolist()
    torch.testing.assert_close(ours["token_timestamps"], plain["token_timestamps"])
    assert len(plain["token_timestamps"].unique()) > 3
    with pytest.raises(UnsupportedArgument, match="one audio at a time"):
        hf_exactassist.generate(target, audio(2), **settings, assistant_model=assistant)
