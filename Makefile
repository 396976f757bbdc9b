# `make demo` and `make test` do all their own set-up. Others: docs, test-all, sanitize,
# lint, bench, gpu, clean.
#
#   make test TORCH=2.11.0     under another torch, in a virtual environment of its own
#   make test PYTHON=python3.10 TORCH=2.15.0

PYTHON ?= python3
DEFAULT_TORCH := 2.13.0
TORCH ?= $(DEFAULT_TORCH)

VENV := $(if $(filter $(DEFAULT_TORCH),$(TORCH)),.venv,.venv-$(TORCH))
READY := $(VENV)/.ready
BIN := $(VENV)/bin
LIBRARIES := $(VENV)/timm

.DEFAULT_GOAL := help
.PHONY: help venv demo test docs test-all sanitize lint bench gpu gpu-build gpu-test gpu-bench clean

help:
	@echo "make demo | test | docs | test-all | sanitize | lint | bench | gpu | clean   [TORCH=$(TORCH)] [PYTHON=$(PYTHON)]"

# Of `make gpu`, or a part of it: make gpu-bench GPU_CASES=gpt2 GPU_PRECISIONS=bfloat16 GPU_OUT=out
GPU_CASES ?= mlp vit_tiny resnet50 gpt2 bert_base resnet50_256
GPU_PRECISIONS ?= bfloat16 float32
GPU_OUT ?= benchmarks/results
GPU_TESTS := tests/replay/test_on_a_gpu.py tests/ops/test_on_a_gpu.py tests/features/test_cudnn.py tests/test_examples.py tests/distributed/test_on_gpus.py tests/oneflow/test_on_a_gpu.py

SOURCES := setup.py $(wildcard torchgraph/csrc/*.* torchgraph/csrc/*/*)

# Made again only when the project's requirements or its compiled parts change. The second install names torch once more,
# so that no requirement can bring another.
$(READY): pyproject.toml $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "torch==$(TORCH)"
	$(BIN)/python -m pip install --quiet "torch==$(TORCH)" --editable ".[dev]"
	$(BIN)/python -m pip install --quiet --no-deps "ai-edge-model-explorer>=0.1.34,<0.2"
	touch $(READY)

venv: $(READY)

demo: $(READY)
	$(BIN)/python -m examples.mobilenet_v2

# A process for each core, up to four: each takes one thread and about a gigabyte.
IN_PARALLEL := --numprocesses auto --maxprocesses 4 --dist worksteal

test: $(READY)
	$(BIN)/python -m pytest -m "not slow" $(IN_PARALLEL)

# The site, from site/index.html on. A warning is an error. All is built anew: what is gone leaves nothing.
docs: $(READY)
	rm -rf site
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --conf-dir docs . site
	rm -rf site/.doctrees site/_sources site/.buildinfo
	@echo "site/index.html"

# Third-party libraries. timm comes with a torchvision whose ops a CPU torch does not load, and what
# asks whether it is installed would break: the two lie in a folder that only timm's tests see.
$(LIBRARIES): $(READY)
	$(BIN)/python -m pip install --quiet "torch==$(TORCH)" --editable ".[dev,libraries]"
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(LIBRARIES) "timm>=1.0.15,<2" torchvision
	touch $(LIBRARIES)

test-all: $(LIBRARIES)
	$(BIN)/python -m pytest $(IN_PARALLEL)
	PYTHONPATH=$(LIBRARIES) $(BIN)/python -m pytest tests/parity/test_timm.py

# The compiled parts under address and undefined-behaviour checks.
sanitize: $(READY)
	$(BIN)/python -m tests.sanitize

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python -m benchmarks.step

# On a machine with a GPU and an environment that is ready: no set-up but the compiled parts, beside
# the sources, which is what Python finds here first. One piece after the other, each of them under
# nine minutes, and run even when one before it failed.
gpu:
	@failed=0; \
	for part in gpu-build gpu-test gpu-bench; do $(MAKE) --no-print-directory $$part || failed=1; done; \
	exit $$failed

gpu-build:
	PYTHONPATH=torchgraph/csrc timeout 540 $(PYTHON) setup.py -q build_ext --inplace

gpu-test:
	timeout 540 $(PYTHON) -m pytest -m cuda $(GPU_TESTS)

# Two halves of the contenders, for time and for memory: each CUDA Graph keeps what it computes in.
# Batches of 256 do so in bfloat16 alone. Then the memory of a few, each in a process of its own.
# The label ends the name of a result, else the second half would take the first one's place.
GPU_STEP = timeout 540 $(PYTHON) -m benchmarks.step --device cuda --out $(GPU_OUT) --models
GPU_OTHERS := eager,eager fused,compile fused,compile reduce-overhead,manual cuda graph,torchgraph aten
GPU_BACKENDS := eager,torchgraph aten,torchgraph aten fused,torchgraph inductor,torchgraph auto
GPU_MEMORY := eager,manual cuda graph,torchgraph aten,torchgraph inductor

gpu-bench:
	@failed=0; \
	for precision in $(GPU_PRECISIONS); do for case in $(GPU_CASES); do \
	  test $$case.$$precision = resnet50_256.float32 && continue; \
	  $(GPU_STEP) $$case --precision $$precision --no-memory --label backends --contenders "$(GPU_BACKENDS)" || failed=1; \
	  $(GPU_STEP) $$case --precision $$precision --no-memory --label others --contenders "$(GPU_OTHERS)" || failed=1; \
	done; done; \
	for case in $(filter resnet50 gpt2,$(GPU_CASES)); do \
	  $(GPU_STEP) $$case --precision bfloat16 --rounds 1 --label memory --contenders "$(GPU_MEMORY)" || failed=1; \
	done; \
	exit $$failed

clean:
	rm -rf .venv .venv-* build dist site *.egg-info runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
