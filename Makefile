# hs-extract. `make demo` and `make test` do all of their own set-up.
SHELL := /bin/bash
PY := .venv/bin/python
# Most of the tests' time is spent waiting for servers and clocks. A file stays with one worker, and so do its servers.
WORKERS := 3
CODE := formats server_launch mover client tests examples benchmarks

.PHONY: help venv test test-trainers lint format types demo dist clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## */\t/' | expand -t 16

venv:  ## create or bring up to date .venv with the pinned CPU stack
	@bash tools/venv.sh

test: venv  ## run the tests (real SGLang servers on the CPU included); ARGS="-k name" is passed on
	$(PY) -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

test-trainers: venv  ## exports through the trainers' own loaders, in an environment of their own
	@bash tools/trainers.sh
	TORCHDYNAMO_DISABLE=1 .cache/trainers/bin/python -m pytest -W ignore tests/trainers $(ARGS)

lint: venv  ## ruff: rules and formatting; shellcheck
	$(PY) -m ruff check $(CODE)
	$(PY) -m ruff format --check $(CODE)
	.venv/bin/shellcheck --shell=bash .ci/run tools/*.sh examples/slurm/*.sbatch

format: venv  ## let ruff fix what it can
	$(PY) -m ruff check --fix $(CODE)
	$(PY) -m ruff format $(CODE)

types: venv  ## mypy --strict and pyright
	$(PY) -m mypy
	.venv/bin/basedpyright

demo: venv  ## prompts in, verified hidden states out, on a small real model
	@$(PY) examples/demo.py

dist: venv  ## build sdist and wheel into dist/
	$(PY) -m hatchling build

clean:  ## remove what make made (the models cache and .venv too)
	rm -rf .venv .cache demo-out dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +
