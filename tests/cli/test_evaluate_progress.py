"""What the log of a batch job shows of an evaluation, by a clock of its own."""

from hf_exactassist.cli.evaluate_progress import Lines


def test_a_line_at_the_start_and_then_one_a_minute():
    now, lines = [1000.0], []
    told = Lines(lines.append, lambda: now[0])
    told(0, 0, "warming up, greedy")
    # goes on with 10 of 100 steps, two a minute
    for done in range(10, 16):
        told(done, 100, "greedy, plain")
        now[0] += 30
    # something else is counted
    told(0, 3, "testing next tokens, small")
    now[0] += 60
    told(1, 3, "testing next tokens, other")
    assert lines == [
        "warming up, greedy",
        "12 of 100 steps done, 0:44:00 left. Now: greedy, plain",
        "14 of 100 steps done, 0:43:00 left. Now: greedy, plain",
        "0 of 3 steps done. Now: testing next tokens, small",
        "1 of 3 steps done, 0:02:00 left. Now: testing next tokens, other",
    ]
