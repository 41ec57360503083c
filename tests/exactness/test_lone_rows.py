"""Models that cannot run ragged rows: every row equals that row alone, whatever carries its past (contract 0x06B)."""

import copy
import sys

import pytest
import torch
import transformers as hf
from torch.overrides import TorchFunctionMode
from transformers import GenerationConfig, GenerationMixin

import hf_exactassist
from hf_exactassist import AssistedDecoding
from hf_exactassist.drafters import AssistantModelDrafter
from hf_exactassist.models import compat, lone_rows
from hf_exactassist.models.admission import admit
from hf_exactassist.models.lone_rows import LoneRows
from hf_exactassist.schedules import ConstantSchedule
from hf_exactassist.state import snapshot
from hf_exactassist.verification.enumeration import total_variation
from tests.exactness.walk import law, prepare
from tests.tiny import VOCABULARY, noisy, prompts, tiny


IDS = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
BERT = {
    **IDS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
    "is_decoder": True,
}
# class, configuration, settings: windowed masks of its own, ALiBi, positions of its own, no cache, a state of its own,
# short convolutions beside attention, a recurrence that blocks do not continue
KINDS = {
    "gpt_neo": (
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        {
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 6,
            "max_position_embeddings": 128,
        },
    ),
    "bloom": ("BloomForCausalLM", "BloomConfig", {"hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "roberta": ("RobertaForCausalLM", "RobertaConfig", BERT),
    "openai": (
        "OpenAIGPTLMHeadModel",
        "OpenAIGPTConfig",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
    ),
    "rwkv": (
        "RwkvForCausalLM",
        "RwkvConfig",
        {"hidden_size": 32, "num_hidden_layers": 2, "attention_hidden_size": 32, "intermediate_size": 64},
    ),
    "lfm2": (
        "Lfm2ForCausalLM",
        "Lfm2Config",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 64,
            "layer_types": ["conv", "full_attention"],
        },
    ),
    "mamba": ("MambaForCausalLM", "MambaConfig", {"hidden_size": 32, "num_hidden_layers": 2}),
}
SERIAL = {"mamba"}
# by release of Transformers
STRATEGIES = {"serial", "row by row, without a cache"}
NOISE = {"rwkv": 0.1, "lfm2": 0.1, "gpt_neo": 0.1, "bloom": 0.2}
LENGTHS = [9, 4, 6]
GREEDY = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0, "max_new_tokens": 24}


def built(kind, **others):
    model, config, settings = KINDS[kind]
    torch.manual_seed(0)
    model = getattr(hf, model)(getattr(hf, config)(**{**IDS, **settings, **others})).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2 and "A_log" not in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def target(kind):
    return built(kind)


def alone(model, inputs, **settings):
    """What plain `generate` returns for every row by itself, without padding."""
    rows = []
    for ids, mask in zip(inputs["input_ids"], inputs["attention_mask"], strict=True):
        skipped = int((mask == 0).sum())
        rows.append(model.generate(ids[None, skipped:], attention_mask=mask[None, skipped:], **settings)[0])
    return [row[length:].tolist() for row, length in zip(rows, inputs["attention_mask"].sum(dim=1), strict=True)]


def new_tokens(output, inputs):
    return output[:, inputs["input_ids"].shape[1] :].tolist()


def test_how_they_are_run(kind, target):
    assert admit(target).strategy in (STRATEGIES if kind in SERIAL else {"row by row"})


@pytest.mark.parametrize("layout", ["replay", "retained"])
@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("lengths", [[6], LENGTHS])
def test_greedy_tokens_are_those_of_each_row_alone(kind, target, lengths, k, layout):
    inputs = prompts(lengths)
    assistant = noisy(target, NOISE.get(kind, 0.03))
    settings = {**GREEDY, "assistant_model": assistant, "num_assistant_tokens": k, "layout": layout}
    output = hf_exactassist.generate(target, **inputs, **settings, return_dict_in_generate=True, output_scores=True)
    assert new_tokens(output.sequences, inputs) == alone(target, inputs, **GREEDY)
    stats = output.assist_stats
    if admit(target).strategy == "serial":
        assert stats.drafted == 0 and "recurrent state" in stats.serial
    else:
        # one short text may be all loops
        assert stats.serial is None and (len(lengths) == 1 or 0.1 < stats.acceptance_rate < 0.98)
    assert len(output.scores) == GREEDY["max_new_tokens"]


def test_rows_end_at_their_own_eos(kind, target):
    inputs = prompts(LENGTHS)
    texts = alone(target, inputs, **GREEDY)
    settings = {**GREEDY, "eos_token_id": [texts[0][7], texts[2][3]]}
    expected = alone(target, inputs, **settings)
    ours = new_tokens(
        hf_exactassist.generate(target, **inputs, **settings, assistant_model=noisy(target, 0.03)), inputs
    )
    assert [row[: len(text)] for row, text in zip(ours, expected, strict=True)] == expected
    assert len(set(map(len, expected))) > 1
    assert not any(any(row[len(text) :]) for row, text in zip(ours, expected, strict=True))


def test_prompt_lookup_and_a_model_of_another_kind_draft_for_them(kind, target):
    inputs = prompts(LENGTHS)
    expected = alone(target, inputs, **GREEDY)
    for drafting in ({"prompt_lookup_num_tokens": 3}, {"assistant_model": tiny()}):
        assert new_tokens(hf_exactassist.generate(target, **inputs, **GREEDY, **drafting), inputs) == expected


def test_they_draft_for_a_model_of_another_kind(kind, target):
    ragged, inputs = tiny(), prompts(LENGTHS)
    settings = {**GREEDY, "return_dict_in_generate": True, "num_assistant_tokens": 3}
    output = hf_exactassist.generate(ragged, **inputs, **settings, assistant_model=target)
    assert torch.equal(output.sequences, ragged.generate(**inputs, **GREEDY))
    assert output.assist_stats.drafted > 0


def test_shared_noise_gives_plain_text(kind, target):
    """One row: in a batch plain `generate` reads the padding too, which these models notice."""
    inputs, settings = prompts([6]), {**GREEDY, "do_sample": True, "top_k": 0}
    torch.manual_seed(3)
    plain = target.generate(**inputs, **settings)
    settings |= {"coupling": "shared_noise", "seed": 3, "assistant_model": noisy(target, 0.03)}
    assert torch.equal(hf_exactassist.generate(target, **inputs, **settings), plain)


@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize("name", ["lfm2", "rwkv", "bloom"])
def test_the_law_is_that_of_each_row_alone(name, row):
    """Contract 0x03, 0x04H: every random choice walked; the state gone back to is part of it."""
    # by a start token that occurs nowhere else and an end that never comes
    model = built(name, vocab_size=4, bos_token_id=None, eos_token_id=None)
    # spread out, so that every path has mass
    assistant = noisy(model, 0.1)
    inputs = {
        "input_ids": torch.tensor([[1, 3, 2], [0, 2, 3]]),
        "attention_mask": torch.tensor([[1, 1, 1], [0, 1, 1]]),
    }
    settings = {"do_sample": True, "max_new_tokens": 3, "top_k": 0, "temperature": 3.0, "pad_token_id": 0}
    loop = AssistedDecoding(AssistantModelDrafter(assistant, torch.ones(4, dtype=torch.bool)), ConstantSchedule(2))
    run = prepare(model, inputs, **settings)
    ours = law(lambda: tuple(run(loop)[row, 3:].tolist()), walked_rows=[row])
    kept = inputs["attention_mask"][row].bool()
    single = prepare(model, {"input_ids": inputs["input_ids"][row][kept][None]}, **settings)
    plain = law(lambda: tuple(single(GenerationMixin._sample)[0, int(kept.sum()) :].tolist()))
    assert len(plain) > 30 and total_variation(plain, ours) < 1e-5


class Broken(Exception):
    pass


@pytest.mark.parametrize("number", [1, 2, 3, 5, 9, 14])
@pytest.mark.parametrize("which", ["target", "assistant"])
def test_a_forward_that_fails_half_way_leaves_the_state_as_it_was(kind, target, which, number):
    """Contract 0x06E: some layers have moved on when the last one fails."""
    target, inputs = copy.deepcopy(target), prompts(LENGTHS)
    assistant = noisy(target, 0.03)
    settings = {**GREEDY, "assistant_model": assistant, "num_assistant_tokens": 3}
    expected = hf_exactassist.generate(target, **inputs, **settings)
    failing, count = {"target": target, "assistant": assistant}[which], [0]
    head = failing.get_output_embeddings()
    armed = []

    def fail(*args):
        count[0] += bool(armed)
        if count[0] == number:
            count[0] += 1
            raise Broken

    head.register_forward_pre_hook(fail)
    session = hf_exactassist.start(target, **inputs, **settings)
    armed.append(True)
    failures = 0
    while not session.finished:
        texts = session.sequences_so_far()
        try:
            session.step()
        except Broken:
            failures += 1
            assert session.sequences_so_far() == texts
    assert torch.equal(session.result(), expected)
    assert failures == (1 if which == "target" or admit(target).strategy != "serial" else 0)


def test_the_cache_of_one_row_comes_back_and_continues():
    """It holds the returned sequence without its last token, as plain `generate`'s does."""
    model, inputs = built("lfm2"), prompts([6])
    settings = {**GREEDY, "return_dict_in_generate": True}
    plain = model.generate(**inputs, **settings)
    ours = hf_exactassist.generate(model, **inputs, **settings, assistant_model=noisy(model, 0.1))
    for one, other in zip(ours[compat.CACHE_FIELD].layers, plain[compat.CACHE_FIELD].layers, strict=True):
        for name in ("keys", "values"):
            if isinstance(getattr(other, name, None), torch.Tensor):
                assert torch.allclose(getattr(one, name), getattr(other, name), atol=1e-4)
        for state in ("conv_states", "recurrent_states"):
            for i, part in getattr(other, state, {}).items() if isinstance(getattr(other, state, {}), dict) else ():
                if part is not None:
                    assert torch.allclose(getattr(one, state)[i], part, atol=1e-4)


@pytest.mark.parametrize("kind", ["gpt_neo", "bloom", "lfm2"])
@pytest.mark.parametrize("hows", ["pa", "ap", "aa"])
def test_a_passed_cache_of_one_row_continues(kind, hows):
    """Plain and assisted turns over one object, each with the whole text."""
    model = built(kind)
    assistant = noisy(model, NOISE[kind])

    def run(hows):
        cache, given = hf.DynamicCache(config=model.config), prompts([6])
        for turn, how in enumerate(hows):
            settings = {**GREEDY, "max_new_tokens": 12, compat.CACHE_ARGUMENT: cache}
            if how == "p":
                ids = model.generate(**given, **settings)
            else:
                ids = hf_exactassist.generate(model, **given, **settings, assistant_model=assistant)
            said = torch.cat([ids, prompts([3], seed=turn + 5)["input_ids"]], dim=1)
            given = {"input_ids": said, "attention_mask": torch.ones_like(said)}
        assert cache.get_seq_length() == ids.shape[1] - 1
        return ids, cache

    (expected, theirs), (ids, mine) = run("pp"), run(hows)
    assert torch.equal(ids, expected)
    for one, other in zip(mine.layers, theirs.layers, strict=True):
        assert type(one) is type(other) and vars(one).keys() == vars(other).keys()
    for one, other in zip(state_of(mine), state_of(theirs), strict=True):
        assert torch.allclose(one, other, atol=1e-4)


@pytest.mark.parametrize("filled", [False, True])
def test_after_an_error_a_passed_cache_is_as_before(filled):
    model, given, cache = built("lfm2"), prompts([6]), hf.DynamicCache(config=built("lfm2").config)
    if filled:
        ids = model.generate(**given, **GREEDY, **{compat.CACHE_ARGUMENT: cache})
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    before = state_of(cache)

    def criterion(ids, scores):
        if ids.shape[1] > given["input_ids"].shape[1] + 5:
            raise Broken
        return torch.zeros(len(ids), dtype=torch.bool)

    settings = {**GREEDY, "assistant_model": noisy(model, 0.1), compat.CACHE_ARGUMENT: cache}
    with pytest.raises(Broken):
        hf_exactassist.generate(model, **given, **settings, stopping_criteria=[criterion])
    assert same(state_of(cache), before)


def test_a_passed_cache_of_one_row_needs_the_whole_text():
    model, cache = built("lfm2"), hf.DynamicCache(config=built("lfm2").config)
    ids = model.generate(**prompts([6]), **GREEDY, **{compat.CACHE_ARGUMENT: cache})
    given = {"input_ids": ids[:, -1:], "attention_mask": torch.ones_like(ids)}
    with pytest.raises(hf_exactassist.UnsupportedCache, match="pass the whole text"):
        settings = {**GREEDY, "assistant_model": noisy(model, 0.1), compat.CACHE_ARGUMENT: cache}
        hf_exactassist.generate(model, **given, **settings)


def test_a_passed_cache_of_recurrent_states_is_refused():
    """It does not know its length, so plain `generate` would read the whole text into it again."""
    model = built("mamba")
    if compat.cache_argument(model) != compat.CACHE_ARGUMENT:
        return  # earlier releases call it differently
    cache = hf.DynamicCache(config=model.config)
    with pytest.raises(hf_exactassist.UnsupportedCache, match="leave it out"):
        settings = {**GREEDY, "assistant_model": noisy(model, 0.1), compat.CACHE_ARGUMENT: cache}
        hf_exactassist.generate(model, **prompts([6]), **settings)


def test_what_is_not_defined_for_lone_rows_is_refused(kind, target):
    settings = {**GREEDY, "assistant_model": tiny(), "return_dict_in_generate": True}
    if admit(target).strategy == "row by row, without a cache" or kind == "openai":
        # each step of plain `generate` says it about the whole text
        with pytest.raises(hf_exactassist.UnsupportedArgument, match="output_hidden_states"):
            hf_exactassist.generate(target, **prompts([6]), **settings, output_hidden_states=True)
    if kind == "openai" or compat.cache_argument(target) != compat.CACHE_ARGUMENT:
        return  # takes no cache, or calls it differently
    with pytest.raises(hf_exactassist.UnsupportedCache, match="one by one|Dynamic"):
        hf_exactassist.generate(target, **prompts([6, 4]), **settings, **{compat.CACHE_ARGUMENT: hf.DynamicCache()})


def test_hidden_states_and_attentions_are_plain(kind):
    if kind in ("openai", "mamba"):
        pytest.skip("no cache, no drafts")
    target = built(kind)
    if kind != "rwkv":
        target.set_attn_implementation("eager")
    settings = {**GREEDY, "return_dict_in_generate": True, "output_hidden_states": True, "output_attentions": True}
    plain = target.generate(**prompts([9]), **settings)
    ours = hf_exactassist.generate(
        target, **prompts([9]), **settings, assistant_model=noisy(target, NOISE.get(kind, 0.03))
    )
    assert ours.sequences.tolist() == plain.sequences.tolist() and ours.assist_stats.accepted
    for name in ("hidden_states", "attentions"):
        for step, (mine, theirs) in enumerate(zip(getattr(ours, name), getattr(plain, name), strict=True)):
            for part, other in zip(mine, theirs, strict=True):
                assert part.shape == other.shape, (name, step)
                torch.testing.assert_close(part, other, atol=1e-4, rtol=1e-4)


# --- snapshots


@torch.no_grad()
def played(model, text):
    """A lone row that has read a text."""
    rows = LoneRows(model)
    mask = torch.ones(1, len(text), dtype=torch.long)
    kwargs = {"attention_mask": mask, "use_cache": True}
    if (cache := compat.new_cache(model)) is not None:
        kwargs[compat.cache_argument(model)] = cache
    rows.prefill(torch.tensor([text]), hf.GenerationConfig(), kwargs)
    return rows


@torch.no_grad()
def test_a_state_gone_back_to_is_the_state_that_was(kind, target):
    """However often it is gone back to, and whatever was read in between."""
    if kind in SERIAL:
        pytest.skip("blocks are not continued")
    text, generator = [5, 9, 3, 7, 11], torch.Generator().manual_seed(0)
    rows = played(target, text)
    published = list(text)
    for _ in range(12):
        tokens = torch.randint(3, VOCABULARY, (4,), generator=generator).tolist()
        got = rows.forward(torch.tensor([tokens]), [len(published)]).logits[0]
        fresh = played(target, published)
        expected = [
            fresh.forward(torch.tensor([[token]]), [len(published) + i]).logits[0] for i, token in enumerate(tokens)
        ]
        assert torch.allclose(got, torch.cat(expected), atol=1e-3)
        kept = int(torch.randint(0, 5, (1,), generator=generator))
        published += tokens[:kept]


def test_a_snapshot_can_be_used_again_and_shares_nothing_that_is_written_in_place():
    model = built("lfm2")
    rows = played(model, [5, 9, 3, 7, 11])
    cache = rows.rows[0].past[compat.CACHE_ARGUMENT]
    held, tensors = snapshot.take(cache), state_of(cache)
    with torch.no_grad():
        for _ in range(2):
            rows.forward(torch.tensor([[4, 8, 6]]), [5])
            assert not same(state_of(cache), tensors)
            snapshot.put_back(cache, held)
            assert same(state_of(cache), tensors)


def state_of(cache):
    found = []
    for layer in cache.layers:
        for part in vars(layer).values():
            parts = part.values() if isinstance(part, dict) else [part]
            found += [value.clone() for value in parts if isinstance(value, torch.Tensor)]
    return found


def same(ours, theirs):
    return len(ours) == len(theirs) and all(
        a.shape == b.shape and torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)
    )


# --- calls that ask for something else


@pytest.mark.parametrize("lengths", [[6], LENGTHS])
@pytest.mark.parametrize("where", ["call", "configuration"])
def test_without_a_cache_the_tokens_are_the_same(kind, target, lengths, where):
    inputs, settings = prompts(lengths), {**GREEDY, "max_new_tokens": 10}
    expected = alone(target, inputs, **settings)
    model = copy.deepcopy(target)
    if where == "call":
        settings["use_cache"] = False
    else:
        model.generation_config.use_cache = model.config.use_cache = False
    assert new_tokens(hf_exactassist.generate(model, **inputs, **settings, assistant_model=tiny()), inputs) == expected


@pytest.mark.parametrize("kind_", ["openai", "gpt_neo", "roberta"])
@pytest.mark.parametrize("lengths", [[30, 12], [36, 30, 5], [45, 5]])
def test_an_assistant_out_of_positions_leaves_the_row_to_the_target(kind_, lengths):
    limit = {"openai": "n_positions"}.get(kind_, "max_position_embeddings")
    # RoBERTa counts from its padding id on
    assistant = built(kind_, **{limit: 42 if kind_ == "roberta" else 40})
    target, inputs = tiny(), prompts(lengths)
    ours = hf_exactassist.generate(target, **inputs, **GREEDY, assistant_model=assistant, num_assistant_tokens=3)
    assert torch.equal(ours, target.generate(**inputs, **GREEDY))


@pytest.mark.parametrize(
    "settings",
    [
        {"prompt_lookup_num_tokens": 3},
        {"stop_strings": ["x"]},
        {"num_return_sequences": 2},
        {"max_time": 0.0},
        {"repetition_penalty": 1.5, "do_sample": True},
        {"num_beams": 4},
        {"max_length": 5},
    ],
    ids=str,
)
def test_settings_saved_with_a_model_are_none_of_the_probes_business(kind, target, settings, capsys):
    model = copy.deepcopy(target)
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    saved = model.generation_config.to_dict()
    assert admit(model).strategy == admit(target).strategy
    assert model.generation_config.to_dict() == saved and capsys.readouterr() == ("", "")


@pytest.mark.parametrize("number", [1, 3, 20])
def test_no_memory_for_a_probe_is_not_an_answer(number):
    model, count = built("rwkv"), [0]

    def fail(*args):
        count[0] += 1
        if count[0] == number:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    hook = model.head.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="allocate"):
        admit(model)
    assert admit(model).strategy == "row by row"
    hook.remove()


def test_a_single_row_is_read_as_plain_generate_reads_it(kind, target):
    """Its padding too, which some of these models do not hide."""
    inputs = {"input_ids": torch.tensor([[0, 0, 5, 9, 3]]), "attention_mask": torch.tensor([[0, 0, 1, 1, 1]])}
    for given in (inputs, {"input_ids": inputs["input_ids"]}):
        plain = target.generate(**given, **GREEDY)
        assert torch.equal(hf_exactassist.generate(target, **given, **GREEDY, assistant_model=noisy(target)), plain)


@pytest.mark.parametrize("build", [tiny, lambda: built("bloom")])
def test_prompts_padded_on_the_right_are_refused(build):
    model = build()
    inputs = {
        "input_ids": torch.tensor([[5, 9, 3], [4, 8, 0]]),
        "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]]),
    }
    with pytest.raises(hf_exactassist.UnsupportedArgument, match="pad on the left"):
        hf_exactassist.generate(model, **inputs, **GREEDY, assistant_model=tiny(seed=1))


class Transfers(TorchFunctionMode):
    """Counts where rows are run how often a tensor's values are asked for, each time a wait for the device."""

    ASKING = ("tolist", "item", "nonzero", "cpu", "numpy", "__bool__", "__int__", "__index__", "__float__")

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        ours = sys._getframe(1).f_code.co_filename == lone_rows.__file__
        self.count += ours and getattr(func, "__name__", "") in self.ASKING
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind_", ["bloom", "gpt_neo", "openai"])
def test_a_block_asks_once_for_its_tokens(kind_):
    """For all rows together, and not at all for single tokens: blocks end at the padding token."""
    model, inputs = built(kind_), prompts(LENGTHS)
    rows = admit(model) and LoneRows(model, cached=kind_ != "openai")
    assert rows._padding == 0
    arguments = {"attention_mask": inputs["attention_mask"], "use_cache": True}
    rows.prefill(inputs["input_ids"], GenerationConfig(), arguments)
    for block, asked in (([[5, 6, 7], [4, 0, 9], [3, 8, 2]], 1), ([[5], [0], [7]], 0)):
        with torch.no_grad(), Transfers() as transfers:
            rows.forward(torch.tensor(block), [rows.cache.lengths[0]] * 3)
        assert transfers.count == asked
