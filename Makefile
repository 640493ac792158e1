# make quickstart   installs into $(VENV) and trains a private model
# make test         installs the tools too, then all checks and all tests
#
# PYTHON  the Python to use (3.11, 3.12 or 3.13); the first one found
# VENV    the environment, made inside this folder
# PYTEST  further arguments, as in: make pytest PYTEST="-k ledger"
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV ?= .venv
PYTEST ?=
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
	  2>/dev/null && { command -v $$p; break; }; done)

BIN := $(VENV)/bin
RUN := TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/python
SOURCES := setup.cfg pyproject.toml $(wildcard constraints/*.txt)
CONSTRAINTS = constraints/py$(shell $(BIN)/python -c \
	'import sys; print("%d.%d" % sys.version_info[:2])').txt
ifneq ($(shell uv --version 2>/dev/null),)
MAKE_VENV = uv venv --quiet --allow-existing --python $(PYTHON) $(VENV)
INSTALL = uv pip install --quiet --python $(BIN)/python -c $(CONSTRAINTS)
else
MAKE_VENV = $(PYTHON) -m venv $(VENV)
INSTALL = $(BIN)/python -m pip install --quiet -c $(CONSTRAINTS)
endif

.PHONY: help quickstart test lint types format smoke pytest hooks bench \
	constraints clean

help:
	@sed -n 's/^# \{0,1\}//; 1,6p' Makefile

quickstart: $(VENV)/.installed
	$(RUN) -m tf_dpadaptive.binaries.quickstart --workdir runs/quickstart

# pytest comes last: its closing line ends the output.
test: lint types smoke pytest

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell .

types: $(VENV)/.installed-dev
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright \
		--pythonpath $(BIN)/python

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

pytest: $(VENV)/.installed-dev
	$(BIN)/pytest -m "" --numprocesses auto --dist loadfile $(PYTEST)

# A binary as a user starts it; what each of them does is tested by pytest.
smoke: $(VENV)/.installed
	rm -rf runs/smoke
	$(RUN) -m tf_dpadaptive.binaries.quickstart --workdir runs/smoke \
		--config.train.epochs=1 --config.train.verbose=2

# What a commit with pre-commit installed runs, over all files.
hooks: $(VENV)/.installed-dev
	PATH="$(CURDIR)/$(BIN):$$PATH" pre-commit run --all-files

bench: $(VENV)/.installed-dev
	$(RUN) -m benchmarks.private_step --workdir runs/bench

# The pins of constraints/ anew, from what setup.cfg allows; needs uv.
constraints:
	@for version in 3.11 3.12 3.13; do \
		uv pip compile setup.cfg --extra dev --upgrade --quiet \
			--python-version $$version --python-platform linux \
			--custom-compile-command "make constraints" \
			--output-file constraints/py$$version.txt; \
	done

clean:
	rm -rf $(VENV) runs build dist *.egg-info .pytest_cache .ruff_cache

# Stamps, so that nothing is installed twice.
$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11, 3.12 or 3.13 is needed and" \
		"not on the PATH; name one: make PYTHON=/path/to/python" >&2; exit 1; }
	$(MAKE_VENV) || { echo "No environment could be made. On Debian and" \
		"Ubuntu: apt-get install python3-venv" >&2; exit 1; }

$(VENV)/.installed: $(BIN)/python $(SOURCES)
	$(INSTALL) --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(INSTALL) --editable '.[dev]'
	@touch $@
