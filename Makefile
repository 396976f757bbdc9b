# `make demo` and `make test` do all their own set-up. Others: docs, test-all, sanitize,
# lint, bench, gpu-build, gpu-walk, gpu-first, gpu-second, gpu-stages, clean.
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
.PHONY: help venv demo test docs test-all sanitize lint bench gpu-build gpu-walk gpu-first gpu-second gpu-stages clean

help:
	@echo "make demo | test | docs | test-all | sanitize | lint | bench | gpu-build | gpu-walk | gpu-first | gpu-second | clean   [TORCH=$(TORCH)] [PYTHON=$(PYTHON)]"

SOURCES := setup.py $(wildcard torchgraph/csrc/*.* torchgraph/csrc/*/*)

# Made again only when the project's requirements or its compiled parts change. The second install names torch once more,
# so that no requirement can bring another. An environment that is older than the distribution's name has it as torchgraph.
$(READY): pyproject.toml $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "torch==$(TORCH)"
	$(BIN)/python -m pip uninstall --quiet --quiet --yes torchgraph
	$(BIN)/python -m pip install --quiet "torch==$(TORCH)" --editable ".[dev]"
	$(BIN)/python -m pip install --quiet --no-deps "ai-edge-model-explorer>=0.1.34,<0.2"
	touch $(READY)

venv: $(READY)

demo: $(READY)
	$(BIN)/python -m examples.mobilenet_v2

# A process for each core, up to four: each takes one thread and about a gigabyte.
IN_PARALLEL := --numprocesses auto --maxprocesses 4 --dist worksteal

# The trainers run in processes of their own: a million objects of theirs would make the scans of
# Python's heap in other tests slow.
test: $(READY)
	$(BIN)/python -m pytest -m "not slow" $(IN_PARALLEL) --ignore tests/integrations
	$(BIN)/python -m pytest -m "not slow" $(IN_PARALLEL) tests/integrations

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
	$(BIN)/python -m pytest $(IN_PARALLEL) --ignore tests/integrations
	$(BIN)/python -m pytest $(IN_PARALLEL) tests/integrations
	PYTHONPATH=$(LIBRARIES) $(BIN)/python -m pytest -k timm tests/parity/test_libraries.py tests/integrations/test_timm.py

# The compiled parts under address and undefined-behaviour checks.
sanitize: $(READY)
	$(BIN)/python -m tests.sanitize

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python -m benchmarks.step

# Everything for a GPU, compiled on a machine without one into build/gpu: a checkout and that folder are
# all that `make gpu-first` needs. The environment is as on such a machine: a torch with CUDA.
GPU_PYTHON ?= python3.12
GPU_TORCH ?= 2.11.0
GPU_VENV := .venv-gpu

$(GPU_VENV)/.ready: pyproject.toml
	test -x $(GPU_VENV)/bin/python || $(GPU_PYTHON) -m venv $(GPU_VENV)
	$(GPU_VENV)/bin/python -m pip install --quiet "torch==$(GPU_TORCH)"
	$(GPU_VENV)/bin/python -m pip install --quiet "torch==$(GPU_TORCH)" $(GPU_PACKAGES)
	touch $@

# What the package, the stages and the tests that they run import.
GPU_PACKAGES := "setuptools>=77" "click>=8.1" "numpy>=1.26" "rich>=13" "hypothesis>=6.110" \
	"pytest>=8.3" "pytest-timeout>=2.3" "pytest-xdist>=3.6"

gpu-build: $(GPU_VENV)/.ready
	$(GPU_VENV)/bin/python -m tests.gpu.build

# Without a GPU: the same and what is marked cuda, over a stub of CUDA whose kernels do nothing. It
# reports calls that CUDA or torchgraph refuses; no value counts. Seven minutes on two cores.
gpu-walk: $(GPU_VENV)/.ready
	$(GPU_VENV)/bin/python -m tests.gpu.walk

# On a machine with a GPU, with the Python that is there; DRY=1 walks it all on the CPU, without one.
GPU_RUN := $(if $(DRY),$(BIN)/python,$(PYTHON)) -m tests.gpu
GPU_OPTIONS := $(if $(DRY),--dry) $(if $(GPU_OUT),--out $(GPU_OUT))

gpu-first: $(if $(DRY),$(READY))
	$(GPU_RUN) first $(GPU_OPTIONS)

# In pieces of six minutes: make gpu-second PIECE=tests
gpu-second: $(if $(DRY),$(READY))
	$(GPU_RUN) second $(GPU_OPTIONS) $(if $(PIECE),--only $(PIECE))

gpu-stages: $(READY)
	$(BIN)/python -m tests.gpu list

clean:
	rm -rf .venv .venv-* build dist site *.egg-info runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
