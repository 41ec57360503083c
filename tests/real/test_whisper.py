"""Whisper tiny.en on speech, drafted for by a relative with a noisy head: the transcripts plain `generate` writes."""

import copy
import re

import pytest
import torch
from transformers import WhisperForCausalLM, WhisperForConditionalGeneration, WhisperProcessor, pipeline

import hf_exactassist
from hf_exactassist import UnsupportedDecodingMode
from tests.real.speech import CLIPS, PASSAGE, RATE, SENTENCE, spoken


# minutes of audio, on machines that others may be using too
pytestmark = [pytest.mark.real, pytest.mark.timeout(1200)]

ASSISTANTS = ["own encoder", "same encoder", "decoder alone"]
# the second threshold is so strict that stretches of this clear speech fall back
FALLBACK = {"temperature": (0.0, 0.2, 0.4), "compression_ratio_threshold": 1.35, "logprob_threshold": -0.2}
LONG = {
    "greedy": {"do_sample": False},
    "fallback": FALLBACK,
    "conditioned": {**FALLBACK, "condition_on_prev_tokens": True, "no_speech_threshold": 0.6},
}


@pytest.fixture(scope="module")
def processor(whisper_folder):
    pytest.importorskip("espeakng_loader", reason="no speech without it: pip install -e '.[real]'")
    return WhisperProcessor.from_pretrained(whisper_folder)


@pytest.fixture(scope="module")
def target(whisper_folder):
    return WhisperForConditionalGeneration.from_pretrained(whisper_folder, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def assistants(target, whisper_draft_folder):
    own = WhisperForConditionalGeneration.from_pretrained(whisper_draft_folder, dtype=torch.float32).eval()
    same = copy.deepcopy(own)
    same.model.encoder = target.model.encoder
    return {
        "own encoder": own,
        "same encoder": same,
        "decoder alone": WhisperForCausalLM.from_pretrained(whisper_draft_folder, dtype=torch.float32).eval(),
    }


@pytest.fixture
def enabled(target):
    yield hf_exactassist.enable(target)
    hf_exactassist.disable(target)


@pytest.fixture(scope="module")
def clips(processor):
    """The three clips, of different length, and the middle one alone."""
    return {rows: _heard(processor, texts) for rows, texts in {1: [SENTENCE], 3: CLIPS}.items()}


@pytest.fixture(scope="module")
def passages(processor):
    """More than a minute; alone, and beside the first half of it."""
    half = PASSAGE[: len(PASSAGE) // 2].rsplit(".", 1)[0] + "."
    whole = {"truncation": False, "padding": "longest"}
    return {rows: _heard(processor, texts, **whole) for rows, texts in {1: [PASSAGE], 2: [half, PASSAGE]}.items()}


@pytest.fixture(scope="module")
def plain(target):
    """What plain `generate` makes of features; asked for several times, made once."""
    known = {}

    def transcribe(features, **settings):
        key = (id(features), repr(settings))
        if key not in known:
            torch.manual_seed(5)
            known[key] = WhisperForConditionalGeneration.generate(target, **features, **settings).tolist()
        return known[key]

    return transcribe


def _heard(processor, texts, **settings):
    sound = [spoken(text) for text in texts]
    return processor(sound, sampling_rate=RATE, return_tensors="pt", return_attention_mask=True, **settings)


def _share_of_words(transcript, text):
    said, understood = (set(re.findall(r"[a-z]+", each.lower())) for each in (text, transcript))
    return len(said & understood) / len(said)


def test_the_clips_are_of_different_length():
    assert len({len(spoken(text)) // RATE for text in CLIPS}) == len(CLIPS)
    assert len(spoken(PASSAGE)) > 60 * RATE


def test_the_speech_is_understood(plain, processor, clips, passages):
    """So that what is compared below are transcripts."""
    short = plain(clips[3], do_sample=False, return_timestamps=False)
    long = plain(passages[1], do_sample=False, return_timestamps=True)
    texts = processor.batch_decode([*short, *long], skip_special_tokens=True)
    for transcript, text in zip(texts, [*CLIPS, PASSAGE], strict=True):
        assert _share_of_words(transcript, text) > 0.75, transcript


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("timestamps", [False, True])
@pytest.mark.parametrize("kind", ASSISTANTS)
def test_transcripts_are_plain(target, assistants, plain, clips, kind, timestamps, rows):
    settings = {"do_sample": False, "return_timestamps": timestamps}
    ours = hf_exactassist.generate(target, **clips[rows], **settings, assistant_model=assistants[kind])
    assert ours.tolist() == plain(clips[rows], **settings)


@pytest.mark.parametrize("kind", ASSISTANTS)
def test_enabled_models_transcribe_the_same_and_nothing_is_changed(enabled, assistants, plain, clips, kind):
    """Upstream writes into the assistant's generation config."""
    models = [enabled, assistants[kind]]
    before = [(model.generation_config.to_dict(), model.config.to_dict(), set(vars(model))) for model in models]
    settings = {"do_sample": False, "return_timestamps": False}
    ours = enabled.generate(**clips[3], **settings, assistant_model=assistants[kind])
    assert ours.tolist() == plain(clips[3], **settings)
    after = [(model.generation_config.to_dict(), model.config.to_dict(), set(vars(model))) for model in models]
    assert after == before
    assert not any(hasattr(model.generation_config, "force_unique_generate_call") for model in models)


@pytest.mark.parametrize("kind", ASSISTANTS)
def test_drafts_are_accepted_in_part(target, assistants, clips, kind):
    """About 0.7 of them, one token a round."""
    output = hf_exactassist.generate(
        target,
        **clips[3],
        do_sample=False,
        assistant_model=assistants[kind],
        num_assistant_tokens=1,
        return_dict_in_generate=True,
    )
    stats = output.assist_stats
    assert stats.serial is None and stats.drafted > 20
    assert 0.5 < stats.acceptance_rate < 0.9, stats
    print(f"{kind}: {stats.accepted} of {stats.drafted} drafts accepted")


@pytest.mark.parametrize("kind", ASSISTANTS)
def test_sampled_transcripts_are_plain_under_shared_noise(target, assistants, plain, clips, kind):
    settings = {"do_sample": True, "temperature": 0.9, "return_timestamps": False}
    torch.manual_seed(5)
    ours = hf_exactassist.generate(
        target, **clips[3], **settings, assistant_model=assistants[kind], coupling="shared_noise"
    )
    sampled = plain(clips[3], **settings)
    assert ours.tolist() == sampled != plain(clips[3], do_sample=False, return_timestamps=False)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("how", LONG)
def test_long_transcripts_are_plain(target, assistants, plain, passages, how, rows):
    """Stretch by stretch, in batches that shrink; where a stretch is doubted, again at a higher temperature."""
    settings = {**LONG[how], "return_timestamps": True}
    kind = ASSISTANTS[list(LONG).index(how)]
    torch.manual_seed(5)
    ours = hf_exactassist.generate(
        target, **passages[rows], **settings, assistant_model=assistants[kind], coupling="shared_noise"
    )
    text = plain(passages[rows], **settings)
    assert ours.tolist() == text
    if how == "fallback":
        assert text != plain(passages[rows], **LONG["greedy"], return_timestamps=True), "no stretch fell back"


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("place", ["generate_kwargs", "pipeline"])
def test_pipelines_transcribe_the_same(target, assistants, processor, place, batch_size):
    """Overlapping chunks of half a minute, in batches; beams, which a pipeline starts with, are refused."""
    sound, assistant = [spoken(PASSAGE), spoken(SENTENCE)], {"assistant_model": assistants["own encoder"]}

    def transcribe(given=None, chosen=None):
        pipe = pipeline(
            "automatic-speech-recognition",
            model=target,
            tokenizer=processor.tokenizer,
            feature_extractor=processor.feature_extractor,
            chunk_length_s=30,
            ignore_warning=True,  # of chunks
            **(given or {}),
        )
        return pipe([each.copy() for each in sound], batch_size=batch_size, generate_kwargs=chosen)

    plain = transcribe(chosen={"num_beams": 1})
    assert _share_of_words(plain[0]["text"], PASSAGE) > 0.75 and _share_of_words(plain[1]["text"], SENTENCE) > 0.75
    given = assistant if place == "pipeline" else {}
    chosen = {} if given else assistant
    before = assistant["assistant_model"].generation_config.to_dict()
    hf_exactassist.enable(target)
    try:
        assert transcribe(given, {"num_beams": 1, **chosen}) == plain
        with pytest.raises(UnsupportedDecodingMode, match="num_beams"):
            transcribe(given, {**chosen})
    finally:
        hf_exactassist.disable(target)
    assert assistant["assistant_model"].generation_config.to_dict() == before
