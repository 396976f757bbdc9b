# `make demo` and `make test` do all their own set-up. Others: test-all, sanitize, lint, bench, gpu, clean.
#
#   make test TORCH=2.11.0     under another torch, in a virtual environment of its own
#   make test PYTHON=python3.10 TORCH=2.15.0

PYTHON ?= python3
DEFAULT_TORCH := 2.13.0
TORCH ?= $(DEFAULT_TORCH)

VENV := $(if $(filter $(DEFAULT_TORCH),$(TORCH)),.venv,.venv-$(TORCH))
READY := $(VENV)/.ready
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-all sanitize lint bench gpu clean

help:
	@echo "make demo | test | test-all | sanitize | lint | bench | gpu | clean   [TORCH=$(TORCH)] [PYTHON=$(PYTHON)]"

GPU_CASES := mlp vit_tiny resnet50 resnet50_256 gpt2 bert_base

SOURCES := setup.py $(wildcard torchgraph/csrc/*.* torchgraph/csrc/*/*)

# Made again only when the project's requirements or its compiled parts change. The second install names torch once more,
# so that no requirement can bring another.
$(READY): pyproject.toml $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "torch==$(TORCH)"
	$(BIN)/python -m pip install --quiet "torch==$(TORCH)" --editable ".[dev]"
	touch $(READY)

venv: $(READY)

demo: $(READY)
	$(BIN)/python -m examples.mobilenet_v2

test: $(READY)
	$(BIN)/python -m pytest -m "not slow"

test-all: $(READY)
	$(BIN)/python -m pytest

# The compiled parts under address and undefined-behaviour checks.
sanitize: $(READY)
	$(BIN)/python -m tests.sanitize

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python -m benchmarks.step

# On a machine with a GPU and an environment that is ready: no set-up, one piece after the other,
# each of them under nine minutes, and run even when one before it failed.
gpu:
	@failed=0; \
	$(PYTHON) -m pytest -m cuda || failed=1; \
	for precision in float32 bfloat16; do for case in $(GPU_CASES); do \
	  timeout 540 $(PYTHON) -m benchmarks.step --device cuda --models $$case --precision $$precision || failed=1; \
	done; done; \
	exit $$failed

clean:
	rm -rf .venv .venv-* build dist *.egg-info runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
