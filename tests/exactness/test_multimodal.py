"""Targets and assistants that are shown images or audio return the tokens of plain `generate`."""

import contextlib
import copy
import functools

import pytest
import torch
from transformers import DynamicCache

import hf_exactassist
from hf_exactassist import AssistedDecoding, UnsupportedArgument
from hf_exactassist.drafters import AssistantModelDrafter
from hf_exactassist.models import admission, checks, compat
from hf_exactassist.schedules import ConstantSchedule
from hf_exactassist.verification.enumeration import total_variation
from tests import tiny
from tests.exactness.walk import law
from tests.tiny import noisy, same_as_plain
from tests.tiny_multimodal import KINDS, QWEN, VOCABULARY, prompts
from tests.tiny_multimodal import tiny as shown_tiny


TOKENS = 20
ROWS = {"one row": (1,), "three rows": (2, 1, 1)}
TOWERS = ("vision_tower", "visual", "vision_model", "audio_tower")
MROPE = [kind for kind in QWEN if kind in KINDS]


@functools.cache
def relative(kind):
    return noisy(shown_tiny(kind), 0.02)


@functools.cache
def text_assistant():
    # the placeholder is outside of its vocabulary
    return tiny.tiny("llama", vocabulary=64)


@functools.cache
def plain(kind, counts, picture=0):
    """Tokens of plain `generate`, the prompt left out."""
    inputs = prompts(kind, counts, picture=picture)
    text = shown_tiny(kind).generate(**inputs, do_sample=False, max_new_tokens=TOKENS, eos_token_id=None)
    return text[:, inputs["input_ids"].shape[1] :]


def late_token(texts):
    """A token at which a row can end, but none in the first rounds."""
    first = {token: min(text.index(token) for text in texts if token in text) for text in texts for token in text}
    return next(token for token, place in first.items() if 12 <= place < TOKENS - 2)


def assisted(kind, assistant=None, k=4):
    return {"assistant_model": relative(kind) if assistant is None else assistant, "num_assistant_tokens": k}


@pytest.mark.parametrize("kind", [*KINDS, "qwen3_5"])
def test_what_is_shown_changes_the_text(kind):
    """Otherwise no other test here would tell anything."""
    seen, other = plain(kind, (1,)), plain(kind, (1,), picture=1)
    assert seen.tolist() != other.tolist()
    assert len(set(seen[0].tolist())) >= TOKENS // 2


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("assistant", ["relative", "text"])
@pytest.mark.parametrize("counts", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("kind", KINDS)
def test_greedy(kind, counts, assistant, k):
    """Rows with different numbers of images, padded on the left, which end at different times."""
    model, assistant = shown_tiny(kind), relative(kind) if assistant == "relative" else text_assistant()
    eos = late_token(plain(kind, counts).tolist()) if len(counts) > 1 else None
    settings = {"max_new_tokens": TOKENS, "eos_token_id": eos, "pad_token_id": 0}
    stats = same_as_plain(model, prompts(kind, counts), assisted(kind, assistant, k), **settings).assist_stats
    assert stats.rounds >= 3 and stats.serial is None
    assert assistant is text_assistant() or stats.accepted > stats.drafted / 3
    assert admission.admit(model).strategy == admission.ROWS


@pytest.mark.parametrize("layout", ["replay", "retained"])
@pytest.mark.parametrize("kind", ["qwen2_vl", "gemma3", "paligemma"])
def test_layouts_and_prompt_lookup(kind, layout):
    inputs = prompts(kind, (1, 2))
    settings = {"max_new_tokens": TOKENS, "eos_token_id": None}
    same_as_plain(shown_tiny(kind), inputs, {**assisted(kind), "layout": layout}, **settings)
    same_as_plain(shown_tiny(kind), inputs, {"prompt_lookup_num_tokens": 3, "layout": layout}, **settings)


@pytest.mark.parametrize("counts", [(0, 0), (0, 1)], ids=["no image", "an image in one row"])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_text_alone(kind, counts):
    same_as_plain(shown_tiny(kind), prompts(kind, counts), assisted(kind), max_new_tokens=TOKENS, eos_token_id=None)


def test_rows_that_run_one_by_one():
    """Their images cannot be told apart, so such a model is shown one prompt at a time."""
    model, settings = shown_tiny("qwen3_5"), {"max_new_tokens": TOKENS, "eos_token_id": None}
    assert admission.admit(model).strategy == admission.LONE
    for counts in ((1,), (0, 0)):
        stats = same_as_plain(model, prompts("qwen3_5", counts), assisted("qwen3_5"), **settings).assist_stats
        assert stats.rounds >= 3 and stats.accepted > 0
    with pytest.raises(UnsupportedArgument, match="images or audio .* one prompt at a time"):
        hf_exactassist.generate(model, **prompts("qwen3_5", (1, 1)), **settings, **assisted("qwen3_5"))
    # nor is such an assistant
    with pytest.raises(UnsupportedArgument, match="images or audio .* one prompt at a time"):
        target = shown_tiny("qwen3_vl")
        hf_exactassist.generate(target, **prompts("qwen3_vl", (1, 1)), **settings, **assisted("qwen3_5"))


def test_enabled_models():
    model = hf_exactassist.enable(copy.deepcopy(shown_tiny("llava")))
    inputs = prompts("llava", (1, 2))
    text = model.generate(**inputs, do_sample=False, max_new_tokens=TOKENS, eos_token_id=None, **assisted("llava"))
    assert text[:, inputs["input_ids"].shape[1] :].tolist() == plain("llava", (1, 2)).tolist()


@contextlib.contextmanager
def counted(model):
    """Counts forwards of the part that looks or listens."""
    base, calls = model.base_model, []
    (tower,) = [getattr(base, name) for name in TOWERS if hasattr(base, name)]
    handle = tower.register_forward_hook(lambda *args: calls.append(1))
    try:
        yield calls
    finally:
        handle.remove()


@pytest.mark.parametrize("kind", KINDS)
def test_images_are_read_once_per_model(kind):
    inputs, settings = prompts(kind, (2, 1)), {"max_new_tokens": TOKENS, "do_sample": False, "eos_token_id": None}
    # made before anything is counted: a copy of a model has copies of its hooks
    model, other = shown_tiny(kind), relative(kind)
    # hooks are a new setting for the probes, which show the models no images
    with counted(model) as target, counted(other) as assistant:
        hf_exactassist.generate(model, **inputs, **settings, **assisted(kind))
        assert len(target) == len(assistant) == 1
        hf_exactassist.generate(model, **inputs, **settings, **assisted(kind, text_assistant()))
        assert (len(target), len(assistant)) == (2, 1)


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("kind", ["llava", "qwen2_vl", "qwen3_vl"])
def test_hidden_states_and_attentions(kind, k):
    model, names = copy.deepcopy(shown_tiny(kind)), ("hidden_states", "attentions")
    model.set_attn_implementation("eager")
    flags = {f"output_{name}": True for name in names}
    settings = {"max_new_tokens": 10, "do_sample": False, "eos_token_id": None, "return_dict_in_generate": True}
    inputs = prompts(kind, (1, 2))
    expected = model.generate(**inputs, **settings, **flags)
    got = hf_exactassist.generate(model, **inputs, **settings, **flags, **assisted(kind, k=k))
    for name in names:
        ours, theirs = getattr(got, name), getattr(expected, name)
        assert len(ours) == len(theirs) == 10
        for mine, other in zip(ours, theirs, strict=True):
            for a, b in zip(mine, other, strict=True):
                torch.testing.assert_close(a, b, rtol=0, atol=1e-4)


# --- positions on several axes, and what modules remember ---


@pytest.mark.parametrize("kind", MROPE)
def test_interleaved_sessions_on_one_model(kind):
    """Offsets of positions lie in a module, which each call sets anew."""
    model, settings = shown_tiny(kind), {"max_new_tokens": TOKENS, "do_sample": False, "eos_token_id": None}
    calls = {(1, 2): relative(kind), (3,): model}
    sessions = [
        hf_exactassist.start(model, **prompts(kind, counts), **settings, **assisted(kind, who, k=2))
        for counts, who in calls.items()
    ]
    assert (model.model.rope_deltas < 0).all()
    while not all([session.step() is None for session in sessions]):
        # a plain call in between leaves the offsets of its own
        model.generate(**prompts(kind, (1,)), max_new_tokens=2)
    for counts, session in zip(calls, sessions, strict=True):
        assert session.result()[:, -TOKENS:].tolist() == plain(kind, counts).tolist()


@pytest.mark.parametrize("kind", MROPE)
def test_probes_and_drafting_leave_positions_alone(kind):
    model = copy.deepcopy(shown_tiny(kind))
    offsets = model.model.rope_deltas = torch.tensor([[-7]])
    assert admission.admit(model).admitted
    assert model.model.rope_deltas is offsets
    settings = {"max_new_tokens": 6, "do_sample": False}
    hf_exactassist.generate(shown_tiny(kind), **prompts(kind, (1,)), **settings, **assisted(kind, model))
    assert model.model.rope_deltas is offsets


@pytest.mark.parametrize("kind", [*MROPE, "gemma3"])
def test_a_conversation_over_one_cache(kind):
    """The second turn counts on from the first, although the model is probed and drafts for itself in between."""
    inputs = prompts(kind, (1,))
    settings = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "return_dict_in_generate": True}
    found = []
    for assistance in ({}, {"assistant_model": relative(kind), "num_assistant_tokens": 3}):
        model = copy.deepcopy(shown_tiny(kind))
        first = model.generate(**inputs, **settings)
        ids = torch.cat([first.sequences, torch.tensor([[7, 8, 9]])], dim=1)
        cache = {compat.CACHE_ARGUMENT: getattr(first, compat.CACHE_FIELD)}
        second = hf_exactassist.generate(
            model, input_ids=ids, attention_mask=torch.ones_like(ids), **cache, **settings, **assistance
        )
        found.append(second.sequences.tolist())
    assert found[0] == found[1]


# --- sampling ---


@pytest.mark.parametrize("kind", ["llava", "qwen2_vl", "gemma3", "qwen2_audio"])
def test_several_samples_of_each_prompt(kind):
    """The assistant's images are repeated as the target's are."""
    inputs, settings = prompts(kind, (1, 2)), {"do_sample": True, "num_return_sequences": 2, "max_new_tokens": 12}
    torch.manual_seed(3)
    expected = shown_tiny(kind).generate(**inputs, **settings, eos_token_id=None)
    torch.manual_seed(3)
    output = hf_exactassist.generate(
        shown_tiny(kind),
        **inputs,
        **settings,
        eos_token_id=None,
        coupling="shared_noise",
        return_dict_in_generate=True,
        **assisted(kind),
    )
    assert output.sequences.tolist() == expected.tolist()
    assert output.assist_stats.acceptance_rate > 0.3


def test_law():
    """Every random choice walked; the placeholder is a token like others where the target writes."""
    target = shown_tiny("llava", vocab_size=4, placeholder=3)
    assistant = noisy(target, 0.4)
    inputs = {
        "input_ids": torch.tensor([[1, 3, 3, 3, 3, 2]]),
        "pixel_values": prompts("llava", (1,))["pixel_values"] / 2,
    }
    settings = {"do_sample": True, "max_new_tokens": 3, "top_k": 0, "temperature": 2.0, "eos_token_id": None}

    def row(output):
        return tuple(output[0].tolist())

    expected = law(lambda: row(target.generate(**inputs, **settings)))
    ours = law(lambda: row(hf_exactassist.generate(target, **inputs, **settings, assistant_model=assistant)))
    assert len(expected) > 30 and max(expected.values()) < 0.5
    assert total_variation(expected, ours) < 1e-6


# --- vocabularies ---


@pytest.mark.parametrize("padded", ["assistant", "target"])
@pytest.mark.parametrize("kind", ["llava", "qwen2_vl"])
def test_one_vocabulary_padded_to_a_multiple_of_64(kind, padded):
    """One tokenizer, heads of different size, configurations nested (hf#37471)."""
    small = shown_tiny(kind)
    large = copy.deepcopy(shown_tiny(kind, vocab_size=128))
    weights = small.state_dict()
    with torch.no_grad():
        for name, tensor in large.state_dict().items():
            tensor[tuple(map(slice, weights[name].shape))] = weights[name]
    assert (compat.head_size(small), compat.head_size(large)) == (VOCABULARY, 128)
    pair = (small, noisy(large, 0.01)) if padded == "assistant" else (large, noisy(small, 0.01))
    settings = {"max_new_tokens": TOKENS, "eos_token_id": None}
    stats = same_as_plain(pair[0], prompts(kind, (1, 2)), assisted(kind, pair[1]), **settings).assist_stats
    assert stats.rounds >= 3 and stats.accepted > 0


# --- what is refused ---


class Heard:
    """A streamer that keeps what it gets."""

    def __init__(self):
        self.got = []

    def put(self, value):
        self.got.append(value)

    def end(self):
        pass


@pytest.mark.parametrize(
    ("target", "assistant", "why"),
    [
        ("llava_next", "llava", "cannot read the image_sizes, pixel_values"),
        ("mistral3", "idefics3", "reads pixel_values and not image_sizes"),
        ("llava", "idefics3", "cannot read the pixel_values"),
        ("idefics3", "gemma3", "cannot read the pixel_values"),
    ],
)
def test_assistants_of_another_kind(target, assistant, why):
    streamer = Heard()
    with pytest.raises(UnsupportedArgument, match=f"{why}.*own kind, or one that reads text alone"):
        hf_exactassist.generate(
            shown_tiny(target),
            **prompts(target, (1,)),
            **assisted(target, relative(assistant)),
            streamer=streamer,
            max_new_tokens=4,
        )
    # the prompt at most
    assert len(streamer.got) <= 1


@pytest.mark.parametrize("assistant", ["relative", "text"])
@pytest.mark.parametrize("shown,written", [(2, 1), (1, 2)], ids=["too many", "too few"])
@pytest.mark.parametrize("kind", ["llava", "llava_next", "qwen2_vl", "gemma3", "idefics3", "qwen2_audio", "voxtral"])
def test_images_that_do_not_fit_the_prompt(kind, shown, written, assistant):
    """The error is the target's own, and nobody puts it down to the assistant."""
    inputs, text = prompts(kind, (shown,)), ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")
    inputs |= {name: value for name, value in prompts(kind, (written,)).items() if name in text}
    model, assistant = shown_tiny(kind), relative(kind) if assistant == "relative" else text_assistant()
    plainly = refusal(lambda: model.generate(**inputs, max_new_tokens=4))
    if plainly is None:
        pytest.skip("this release of Transformers takes them")
    ours = refusal(lambda: hf_exactassist.generate(model, **inputs, **assisted(kind, assistant), max_new_tokens=4))
    assert ours == plainly


def refusal(call):
    """Class and text of what a call raises, and whether it came of another error."""
    try:
        call()
    except Exception as error:  # whatever the class says of it
        return type(error), str(error), error.__context__ is None
    return None


def test_images_that_do_not_fit_leave_a_cache_alone():
    kind, cache = "llava", DynamicCache(config=shown_tiny("llava").config.get_text_config())
    inputs = {**prompts(kind, (1,)), "pixel_values": prompts(kind, (2,))["pixel_values"]}
    with pytest.raises(ValueError, match="do not match"):
        hf_exactassist.generate(
            shown_tiny(kind), **inputs, **assisted(kind), max_new_tokens=4, **{compat.CACHE_ARGUMENT: cache}
        )
    assert cache.get_seq_length() == 0
    # what the target can read is the assistant's to refuse, and leaves nothing behind either
    with pytest.raises(UnsupportedArgument, match="assistant .* cannot read"):
        hf_exactassist.generate(
            shown_tiny(kind),
            **prompts(kind, (1,)),
            **assisted(kind, relative("idefics3")),
            max_new_tokens=4,
            **{compat.CACHE_ARGUMENT: cache},
        )
    assert cache.get_seq_length() == 0


def test_arguments_that_every_step_reads():
    model, ids = shown_tiny("llava"), torch.tensor([[5, 6]])
    checks.check_model_arguments(model, ids, {"pixel_values": torch.zeros(1, 3, 8, 8), "vision_feature_layer": -2})
    with pytest.raises(UnsupportedArgument, match="cross_attention_mask.*drop the assistant"):
        checks.check_model_arguments(model, ids, {"cross_attention_mask": torch.ones(1, 2)})
    with pytest.raises(UnsupportedArgument, match="2-D `position_ids`"):
        checks.check_model_arguments(model, ids, {"position_ids": torch.zeros(3, 1, 2)})


def test_images_in_the_cache():
    """A layer of cross-attention holds an image as a layer of self-attention holds text."""
    model, ids = copy.deepcopy(shown_tiny("llava")), torch.tensor([[5, 6]])
    compat.text_config(model).cross_attention_layers = [1]
    with pytest.raises(UnsupportedArgument, match="keeps pixel_values in its cache.*drop the assistant"):
        checks.check_model_arguments(model, ids, {"pixel_values": torch.zeros(1, 3, 8, 8)})
    checks.check_model_arguments(model, ids, {})


def test_drafters_made_by_hand():
    """Where `generate` has turned the images into the target's features, nothing is left to show."""
    target, inputs = shown_tiny("llava"), prompts("llava", (1,))
    shared = torch.ones(VOCABULARY, dtype=torch.bool)
    settings = {"max_new_tokens": TOKENS, "do_sample": False, "eos_token_id": None}

    def run(assistant, **shown):
        loop = AssistedDecoding(AssistantModelDrafter(assistant, shared, **shown), ConstantSchedule(3))
        return target.generate(**inputs, **settings, custom_generate=loop)[:, -TOKENS:].tolist()

    expected = plain("llava", (1,)).tolist()
    assert run(relative("llava"), shown={"pixel_values": inputs["pixel_values"]}) == expected
    if not hasattr(target, "_supports_mm_encoder_outputs"):
        assert run(relative("llava")) == expected
        return
    with pytest.raises(UnsupportedArgument, match="mm_encoder_outputs.*hf_exactassist.generate"):
        run(relative("llava"))


@pytest.mark.parametrize("kind", ["llava", "qwen2_vl", "qwen2_audio"])
def test_manifests_know_the_images(kind):
    found = set()
    for picture in (0, 0, 1):
        session = hf_exactassist.start(
            shown_tiny(kind), **prompts(kind, (1,), picture=picture), prompt_lookup_num_tokens=2, max_new_tokens=4
        )
        found.add(str(session.manifest()["call"]["prompt"]["shown"]))
        session.abandon()
    assert len(found) == 2
