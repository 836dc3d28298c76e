# make demo       installs what is needed into .venv and runs the main job
# make test       the same set-up, then the tests, on up to four cores: 15 to 20 minutes on two
# make test-quick those that neither train nor convert: about 2 minutes on two cores
# make test-all   the slow ones too
# make test-ci    those but the ones with the mark `release`: what .ci/run runs
# make check      lint (ruff format, ruff, pyright), then all tests
# make docs       the documentation, into build/docs; warnings and broken links are errors
# make install    the set-up alone
SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= $(firstword $(foreach name,python3.11 python3.12 python3.13 python3,$(shell command -v $(name))))

# One process for each core; the tests of a file share what they have built, so they stay in one process, and
# files start in the order of tests/hooks.py. If a process crashes, the run ends: pytest-xdist would wait for its tests.
PYTEST := $(BIN)/python -m pytest -n logical --maxprocesses 4 --max-worker-restart 0 --dist loadfile --no-loadscope-reorder

.PHONY: install demo test test-quick test-all test-ci lint check docs clean

# The stamp is newer than the metadata once everything is installed: a second run installs nothing.
install: $(VENV)/.installed

$(VENV)/.installed: setup.py pyproject.toml
	@"$(PYTHON)" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { \
	  echo "keras_ctxrep needs Python 3.11, 3.12 or 3.13 (found '$(PYTHON)'): install one, or name it: make PYTHON=/path/to/python3.11"; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "Python's venv module is missing: on Debian and Ubuntu install it with 'apt-get install python3-venv'"; exit 1; }
	"$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet -e ".[dev]"
	@touch $@

demo: install
	$(BIN)/ctxrep demo

test: install
	$(PYTEST)

test-quick: install
	$(PYTEST) -m "not slow and not gpu and not trains"

test-all: install
	$(PYTEST) -m "not gpu"

test-ci: install
	$(PYTEST) -m "not gpu and not release"

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

check: lint test-all

docs: install
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs

clean:
	rm -rf $(VENV) build dist demo *.egg-info
