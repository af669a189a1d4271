# Each target sets up its own .venv: all that a fresh machine needs is Python 3.11 or later and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# Three processes on two cores: tests wait for servers and browsers during a quarter of their time.
PYTEST := $(BIN)/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder
unexport PYTHONDONTWRITEBYTECODE  # pytest would compile every test in every process

.PHONY: help demo test lint page wheel check bench docs clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(VENV)/.train  ## write images, train on them, show the results (./bgad-demo)
	$(BIN)/bgad demo

test: $(VENV)/.dev  ## run the tests
	$(PYTEST)

lint: $(VENV)/.dev  ## lint, format, types and import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

wheel: $(VENV)/.dev  ## build the wheel and score with it in an environment without torch
	$(BIN)/python tools/check_wheel.py

check: lint page test wheel  ## everything that a change must pass

page:  ## lint, types and unit tests of the workbench's page, where node is installed
	@if ! command -v npm > /dev/null; then echo "page: skipped, node is not installed"; \
	else $(MAKE) --no-print-directory node_modules/.package-lock.json && npm run --silent check; fi

bench: $(VENV)/.dev  ## measure speed against other implementations
	$(BIN)/python -m benchmarks.flow
	$(BIN)/python -m benchmarks.metrics
	$(BIN)/python -m benchmarks.scoring --anomalib
	$(BIN)/python -m benchmarks.int8
	$(BIN)/python -m benchmarks.memory
	$(BIN)/python -m benchmarks.training
	$(BIN)/python -m benchmarks.table

docs: $(VENV)/.docs  ## build the documentation site (./site); a broken link is an error
	$(BIN)/mkdocs build --strict  # with --quiet, it does not count warnings

clean:  ## remove the environment and caches
	rm -rf $(VENV) node_modules site build .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "bgad needs Python 3.11 or later: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.train: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing (PyTorch is large: this takes a few minutes)"
	$(PIP) -e '.[train,serve]'
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing (PyTorch is large: this takes a few minutes)"
	$(PIP) -e '.[dev]'
	touch $@ $(VENV)/.train

$(VENV)/.docs: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[docs]'
	touch $@

node_modules/.package-lock.json: package.json
	npm install --loglevel=error
	touch $@
