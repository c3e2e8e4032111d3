# Everything from a fresh clone: `make check` runs kvproof on the connectors, `make test` tests kvproof itself.
PYTHON ?= python3
# `make gpu-wheels PYTHON=3.12` names the Python of another machine; this one's own then makes the environment.
OWN_PYTHON := $(if $(filter 3.%,$(PYTHON)),python3,$(PYTHON))
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
GPU_WHEELS := wheels

.PHONY: check test lint nightly mutants gpu gpu-wheels clean

check: $(STAMP)
	$(BIN)/kvproof run

test: lint
	$(BIN)/python -m pytest -n 2 --dist loadscope

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy

nightly: $(STAMP)
	$(BIN)/python -m pytest --kvproof-nightly -m 'nightly or hypothesis' -s
	$(BIN)/python bench/reference.py
	$(BIN)/python bench/logs.py
	$(BIN)/python bench/proxy.py
	$(BIN)/python -m bench.sharding
	$(BIN)/python -m bench.campaigns
	$(BIN)/python -m bench.economics

mutants: $(STAMP)
	$(BIN)/python -m tests.mutation

# torch first, from constraints.txt, so that nothing else chooses one; LMCache without its own metadata, which asks for
# CUDA packages that it does not need on a CPU.
$(STAMP): pyproject.toml constraints.txt Makefile
	$(OWN_PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("kvproof needs Python 3.11 or newer: make PYTHON=...")'
	$(OWN_PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(PIP) -c constraints.txt torch
	$(PIP) -c constraints.txt -e '.[clients,lmcache,dev]'
	$(PIP) -c constraints.txt --no-deps lmcache
	$(BIN)/kvproof connectors --install redis-py-asyncio==4.5.3  # redis-py==4.5.3 is the same distribution
	$(BIN)/kvproof connectors --install redis-py-asyncio==4.5.4
	touch $@

# One prepared run on a machine with a GPU: installs nothing, needs no network, takes wheels from a folder.
gpu:
	$(PYTHON) -m kvproof.gpu --wheels $(GPU_WHEELS) --json gpu.json

gpu-wheels: $(STAMP)
	$(BIN)/python -m kvproof.gpu.wheels --python $(or $(filter 3.%,$(PYTHON)),3.12) --to $(GPU_WHEELS)

clean:
	rm -rf $(VENV) build dist *.egg-info $(GPU_WHEELS)
