"""Built-in prompts and how they make batches."""

from hf_exactassist.benchmark import clocks, measuring
from hf_exactassist.benchmark.prompts import BUILT_IN, Batch, Prompt, batches, built_in
from hf_exactassist.cli.bench import CLOCKS, KINDS, MODES


def test_the_command_knows_all_names():
    """It may not import them, as help would then load torch."""
    assert KINDS == tuple(BUILT_IN)
    assert CLOCKS == clocks.CLOCKS
    assert MODES == measuring.MODES


def test_kinds_have_as_many_prompts_as_can_be_asked_for():
    assert {len(texts) for texts in BUILT_IN.values()} == {4}
    chosen = built_in(["code", "prose"], 2)
    assert [prompt.kind for prompt in chosen] == ["code", "code", "prose", "prose"]
    assert chosen[2].text == BUILT_IN["prose"][0]


def test_batches_go_in_order_and_the_last_is_filled_up():
    prompts = [Prompt("a", "1"), Prompt("a", "2"), Prompt("b", "3")]
    assert batches(prompts, 2) == [Batch("a", (0, 1)), Batch("mixed", (2, 0))]
    assert batches(prompts, 1) == [Batch("a", (0,)), Batch("a", (1,)), Batch("b", (2,))]
    assert batches(prompts, 4) == [Batch("mixed", (0, 1, 2, 0))]
