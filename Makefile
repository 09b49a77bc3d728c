# make train   install, then train SAC on Pendulum-v1 and say what it reached
# make test    install what the tests need, then run them
# make lint    format and lint
# make check   the same, and types
PYTHON ?= python3
VENV ?= .venv
JAX ?= jax

BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: train test test-slow lint check

train: $(VENV)/.installed
	$(BIN)/python -m jaxrl_async train sac Pendulum-v1 --env-steps 20000

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 2

test-slow: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

check: lint
	$(BIN)/pyright --pythonpath $(BIN)/python

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "jaxrl_async needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet "$(JAX)" -e .
	touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet "$(JAX)" -e ".[dev]"
	touch $@
