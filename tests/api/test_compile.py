"""`compile="draft" | "both"`: the tokens of plain `generate`, one set of graphs for prompts of every length.

Dynamo traces, and what it has traced runs as it is, but for one slow test of the real compiler.
"""

import copy

import pytest
import torch
from transformers import DynamicCache, GenerationConfig, pipeline

import hf_exactassist
from hf_exactassist import AssistedDecoding, resolve
from hf_exactassist.drafters import PromptLookupDrafter
from hf_exactassist.errors import InvalidArgument, UnsupportedArgument
from hf_exactassist.models import compiled
from hf_exactassist.schedules import ConstantSchedule
from hf_exactassist.scoring import Scorer
from tests.api.helpers import assert_same_cache, cache_of, drafts_were_mixed, toy_tokenizer
from tests.tiny import looping, noisy, prompts, tiny


GREEDY = {"max_new_tokens": 25, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
ACCELERATOR = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None


@pytest.fixture(scope="module")
def pair():
    """Shared, and with it its graphs."""
    target = tiny()
    return target, noisy(target, 0.15)


def assisted(pair, inputs, **settings):
    target, assistant = pair
    settings = {**GREEDY, "return_dict_in_generate": True, **settings}
    return hf_exactassist.generate(target, **inputs, assistant_model=assistant, **settings)


@pytest.mark.parametrize("how, number", [("draft", 2), ("both", 3)])
def test_prompts_of_every_length_share_their_graphs(graphs, how, number):
    """A drafter that is always right makes rounds alike: single tokens, two at a round's start; and blocks of six."""
    target = tiny()
    twin = copy.deepcopy(target)
    for length in (7, 3, 1, 16, 40, 150, 224):
        inputs = prompts([length])
        output = assisted((target, twin), inputs, compile=how)
        assert torch.equal(output.sequences, target.generate(**inputs, **GREEDY))
        assert output.assist_stats.acceptance_rate == 1
        assert len(graphs) == number, length
    # beyond 256 slots begins another set, up to 512, and it is the last one there
    for length in (300, 420):
        assisted((target, twin), prompts([length]), compile=how)
        assert len(graphs) == 2 * number


@pytest.mark.parametrize("layout", ["replay", "retained"])
@pytest.mark.parametrize("how", ["draft", "both"])
def test_greedy_batches(graphs, pair, how, layout):
    """Rows that end at different times leave the storage; texts, counters and the cache are those of other calls."""
    inputs = prompts([5, 9, 3])
    free = pair[0].generate(**inputs, **GREEDY)
    ends = {"eos_token_id": free[1, [12, 20]].tolist()}
    plain = pair[0].generate(**inputs, **{**GREEDY, **ends}, return_dict_in_generate=True)
    usual = assisted(pair, inputs, **ends, layout=layout)
    output = assisted(pair, inputs, **ends, layout=layout, compile=how)
    assert torch.equal(output.sequences, plain.sequences) and drafts_were_mixed(output)
    assert output.assist_stats == usual.assist_stats
    assert_same_cache(cache_of(output), cache_of(plain))
    # earlier tests may have made the graphs
    assert compiled.compiled_for(pair[1]) and (how == "draft" or compiled.compiled_for(pair[0]))


def test_sampling(graphs, pair):
    call = {"do_sample": True, "seed": 3, "top_k": 30}
    usual = assisted(pair, prompts([5, 9, 3]), **call)
    for how in ("draft", "both"):
        output = assisted(pair, prompts([5, 9, 3]), **call, compile=how)
        assert torch.equal(output.sequences, usual.sequences) and drafts_were_mixed(output)


def test_a_sliding_window_is_kept_whole(graphs):
    target = tiny("gemma3")
    inputs = prompts([13, 5])
    plain = target.generate(**inputs, **GREEDY, return_dict_in_generate=True)
    output = assisted((target, noisy(target, 0.25)), inputs, compile="both")
    assert torch.equal(output.sequences, plain.sequences) and drafts_were_mixed(output)
    assert_same_cache(cache_of(output), cache_of(plain))


def test_prompt_lookup_has_a_target_to_compile(graphs):
    model, inputs = looping()
    call = {**inputs, **GREEDY, "prompt_lookup_num_tokens": 3}
    assert torch.equal(hf_exactassist.generate(model, **call, compile="both"), model.generate(**inputs, **GREEDY))
    assert graphs
    with pytest.raises(InvalidArgument, match='`compile="draft"` compiles an assistant'):
        hf_exactassist.generate(model, **call, compile="draft")


def test_every_door(graphs, pair):
    """The function, an enabled model in a pipeline, a generation config, a session, the recipe, the loop itself."""
    target, assistant = pair
    inputs = prompts([6])
    plain = target.generate(**inputs, **GREEDY)

    def compiles(call):
        # a model of its own, so that there is something to compile
        before, (mine, other) = len(graphs), copy.deepcopy(pair)
        output = call(mine, other)
        assert len(graphs) > before
        return output

    settings = {**GREEDY, "compile": "draft"}
    config = GenerationConfig(**settings)
    output = compiles(
        lambda model, other: hf_exactassist.generate(model, **inputs, assistant_model=other, generation_config=config)
    )
    assert torch.equal(output, plain)
    session = compiles(
        lambda model, other: hf_exactassist.start(model, **inputs, assistant_model=other, **GREEDY, compile="both")
    )
    manifest = session.manifest()
    assert torch.equal(session.result(), plain)
    assert manifest["call"]["target"]["compiled"] and manifest["call"]["drafter"]["compiled"]
    unlike = hf_exactassist.start(target, **inputs, assistant_model=assistant, **GREEDY).manifest()["call"]
    assert "compiled" not in unlike["target"] and "compiled" not in unlike["drafter"]
    output = compiles(
        lambda model, other: model.generate(
            **inputs,
            **settings,
            assistant_model=other,
            custom_generate="recipes/exact-assist",
            trust_remote_code=True,
        )
    )
    assert torch.equal(output, plain)
    loop = AssistedDecoding(PromptLookupDrafter(3, 2), ConstantSchedule(3), compile="both")
    assert torch.equal(compiles(lambda model, other: model.generate(**inputs, **GREEDY, custom_generate=loop)), plain)
    tokenizer = toy_tokenizer()

    def piped(model, other):
        pipe = pipeline("text-generation", hf_exactassist.enable(model), tokenizer=tokenizer, assistant_model=other)
        return pipe("w5 w6 w7", max_new_tokens=8, do_sample=False, compile="draft")

    compiles(piped)


def test_rounds_that_wait_for_the_compiler_are_not_timed(graphs, monkeypatch):
    """They would make drafts look dear for a long time; and what compiled rounds take is learned apart."""
    target = tiny()
    models = target, noisy(target, 0.15)

    def rounds_and_times(how):
        session = hf_exactassist.start(
            target, **prompts([6]), **GREEDY, assistant_model=models[1], num_assistant_tokens=4, compile=how
        )
        times = []
        monkeypatch.setattr(session.schedule, "timed", lambda *told: times.append(told))
        session.result()
        return session.stats.rounds, len(times)

    rounds, timed = rounds_and_times("both")
    assert timed < rounds and graphs
    assert all(rounds == timed for rounds, timed in (rounds_and_times("both"), rounds_and_times(None)))
    costs = [resolve._known(*models, how).costs for how in (None, "draft", "both", None, "draft")]
    assert len({*map(id, costs[:3])}) == 3 and costs[3] is costs[0] and costs[4] is costs[1]


@pytest.mark.parametrize("value", ["target", "", True, "BOTH"])
def test_a_wrong_value_is_named(graphs, pair, value):
    with pytest.raises(InvalidArgument, match='`compile` must be "draft" or "both" or left out'):
        assisted(pair, prompts([4]), compile=value)
    assert not graphs


REFUSED = {
    "quantized": ({"cache_implementation": "quantized"}, "quantized or offloaded"),
    "offloaded": ({"cache_implementation": "offloaded"}, "quantized or offloaded"),
    "hidden states": ({"output_hidden_states": True}, "logits alone, and output_hidden_states"),
    "attentions": ({"output_attentions": True}, "logits alone, and output_attentions"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_calls_that_cannot_be_compiled_are_refused_at_once(graphs, pair, monkeypatch, name):
    """Before anything is read; the draft alone can be."""
    settings, reason = REFUSED[name]
    if name == "quantized":
        pytest.importorskip("optimum.quanto")
    read = []
    monkeypatch.setattr(Scorer, "prefill", lambda *args: read.append(args))
    with pytest.raises(UnsupportedArgument, match=f'`compile="both"` is not defined.*{reason}.*`compile="draft"`'):
        assisted(pair, prompts([4]), compile="both", **settings)
    assert not read and not graphs


@pytest.mark.parametrize("role", ["target", "assistant"])
def test_a_model_that_runs_row_by_row_is_refused(graphs, pair, role):
    from transformers import BloomConfig, BloomForCausalLM

    torch.manual_seed(0)
    alone = BloomForCausalLM(BloomConfig(vocab_size=80, hidden_size=32, n_layer=2, n_head=4)).eval()
    models = (alone, pair[1]) if role == "target" else (pair[0], alone)
    with pytest.raises(UnsupportedArgument, match=f"forwards of the {role} Bloom.*cannot be compiled: it runs row by"):
        assisted(models, prompts([4]), compile="both")
    if role == "target":
        plain = alone.generate(**prompts([4]), **GREEDY)
        assert torch.equal(assisted(models, prompts([4]), compile="draft").sequences, plain)


@pytest.mark.parametrize("make", [lambda model: DynamicCache(config=model.config), None])
def test_a_cache_that_is_passed_in_is_filled(graphs, pair, make):
    """Also one that `generate` makes static: the call runs over a copy."""
    inputs, settings = prompts([5]), {"cache_implementation": "static"} if make is None else {}
    plain = pair[0].generate(**inputs, **GREEDY)
    if make is not None:
        settings["past_key_values" if compiled.compat.CACHE_ARGUMENT != "cache" else "cache"] = make(pair[0])
    output = assisted(pair, inputs, compile="both", **settings)
    assert torch.equal(output.sequences, plain)
    assert cache_of(output).get_seq_length() == plain.shape[1] - 1


@pytest.mark.slow
@pytest.mark.parametrize("lengths", [[6], [5, 9, 3]])
def test_the_real_compiler(lengths):
    """Kernels of inductor round in their own way; in float32 the tokens are the same."""
    target = tiny()
    inputs = prompts(lengths)
    output = assisted((target, noisy(target, 0.15)), inputs, compile="both")
    assert torch.equal(output.sequences, target.generate(**inputs, **GREEDY)) and drafts_were_mixed(output)


@pytest.mark.gpu
@pytest.mark.skipif(ACCELERATOR is None, reason="no accelerator")
@pytest.mark.parametrize("lengths", [[6], [5, 9, 3]])
@pytest.mark.parametrize("layout", ["replay", "retained"])
def test_on_an_accelerator(lengths, layout):
    target = tiny().to(ACCELERATOR)
    assistant = noisy(tiny(), 0.15).to(ACCELERATOR)
    inputs = {name: part.to(ACCELERATOR) for name, part in prompts(lengths).items()}
    plain = target.generate(**inputs, **GREEDY)
    output = assisted((target, assistant), inputs, compile="both", layout=layout)
    assert torch.equal(output.sequences, plain) and drafts_were_mixed(output)
    longer = {name: part.to(ACCELERATOR) for name, part in prompts([n + 30 for n in lengths]).items()}
    output = assisted((target, assistant), longer, compile="both", layout=layout)
    assert torch.equal(output.sequences, target.generate(**longer, **GREEDY))
