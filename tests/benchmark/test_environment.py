"""The header says what a figure depends on."""

import platform

import torch
import transformers

import hf_exactassist
from hf_exactassist.benchmark import environment as module
from hf_exactassist.benchmark.clocks import fitting_clock
from hf_exactassist.benchmark.environment import environment


def test_versions_threads_and_machine():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        told = environment(torch.device("cpu"))
    finally:
        torch.set_num_threads(before)
    assert told["threads"] == 1 and told["device"] == "cpu" and told["accelerator"] is None
    assert told["torch"] == torch.__version__ and told["transformers"] == transformers.__version__
    assert told["hf_exactassist"] == hf_exactassist.__version__
    assert told["processor"] and told["cpus"] >= 1 and told["date"].endswith("+00:00")
    assert told["load_average"] is None or len(told["load_average"]) == 3


def test_systems_that_count_no_load(monkeypatch):
    monkeypatch.delattr(module.os, "getloadavg", raising=False)
    monkeypatch.delattr(module.os, "sched_getaffinity", raising=False)
    told = environment(torch.device("cpu"))
    assert told["load_average"] is None and told["cpus"] >= 1


def test_processors_that_are_not_in_proc(monkeypatch):
    monkeypatch.setattr(module.Path, "read_text", lambda *_, **__: (_ for _ in ()).throw(FileNotFoundError()))
    assert environment(torch.device("cpu"))["processor"] == (platform.processor() or platform.machine())


def test_cpu_time_judges_one_thread_on_a_cpu_alone():
    assert fitting_clock(torch.device("cpu"), 1) == "cpu"
    assert fitting_clock(torch.device("cpu"), 2) == "wall"
    assert fitting_clock(torch.device("cuda"), 1) == "wall"
