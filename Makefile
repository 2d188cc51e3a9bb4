# Needs make and Python >= 3.11, nothing else: every target sets up what it uses, in .venv, and does so again only
# when pyproject.toml changes.
#
#   make demo                     see it work
#   make test ARGS="-k retry"     pass arguments on to pytest
#   make test PYTHON=python3.12   choose the interpreter a new .venv is made with

VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
ARGS   ?=

# The interpreter for a new .venv: the first of these that runs and is new enough.
PYTHON ?=
CANDIDATES = $(if $(PYTHON),$(PYTHON),python3 python python3.14 python3.13 python3.12 python3.11)
NEW_ENOUGH := -c 'import sys; sys.exit(sys.version_info < (3, 11))'

# A test process for each CPU we may use and two more, since many a test waits for a moment; four at most: the suite
# starts workers of its own.
TEST_PROCESSES ?= $$($(BIN)/python -c 'import os; \
	print(min(4, 2 + (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)))')

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help demo test coverage faults check format bench bench-peers docs release screenshots clean venv

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.ready-run  ## a self-contained show on SQLite
	$(BIN)/taskharbor demo $(ARGS)

test: $(VENV)/.ready-dev  ## the whole test suite
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist worksteal $(ARGS)

coverage: $(VENV)/.ready-dev  ## the test suite, with the share of the code that it runs
	$(BIN)/python -m coverage erase
	$(BIN)/python -m coverage run -m pytest -n $(TEST_PROCESSES) --dist worksteal $(ARGS)
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report --skip-covered --sort=cover

# The same tests as in `make test`, in their long form: more kills, more runs, more seeds. One at a time, since each
# keeps the machine busy by itself.
faults: export TASKHARBOR_FAULT_KILLS ?= 50
faults: export TASKHARBOR_FAULT_POISON ?= 4
faults: export TASKHARBOR_FAULT_RUNS ?= 10
faults: export TASKHARBOR_FAULT_SECONDS ?= 60
faults: export TASKHARBOR_FAULT_SCHEDULES ?= 10000
faults: export TASKHARBOR_FAULT_RESTARTS ?= 50
faults: export TASKHARBOR_FAULT_RECYCLED ?= 1000
faults: export TASKHARBOR_FAULT_GROUPED ?= 10000
faults: export TASKHARBOR_SIMULATION_SECONDS ?= 120
faults: export TASKHARBOR_CONFORMANCE_EXAMPLES ?= 300
faults: export TASKHARBOR_FAULT_MESSAGES ?= 50000
faults: export TASKHARBOR_FAULT_HOLE_SECONDS ?= 30
faults: export TASKHARBOR_FAULT_STREAM_KILLS ?= 30
faults: export TASKHARBOR_FAULT_STREAM_MEMBERS ?= 3
faults: export TASKHARBOR_FAULT_STREAM_PARTITIONS ?= 4
faults: export TASKHARBOR_FAULT_STREAM_ORDERS ?= none key partition
faults: export TASKHARBOR_FAULT_STREAM_BROKER_RESTARTS ?= 1
faults: export TASKHARBOR_FAULT_STREAM_OUTAGE_SECONDS ?= 30
faults: export TASKHARBOR_FAULT_DJANGO_TASKS ?= 2000
faults: export TASKHARBOR_FAULT_DJANGO_KILLS ?= 20
faults: $(VENV)/.ready-dev  ## the fault tests, in their long form
	$(BIN)/python -m pytest --timeout 1800 tests/faults tests/postgres/faults tests/supervisor tests/simulation \
		tests/drivers/test_state_machine.py tests/postgres/test_state_machine.py tests/postgres/test_settles.py \
		tests/stores/test_sqlite_settles.py tests/streams/test_kills.py tests/streams/test_ingest_kills.py \
		tests/streams/test_topics_kills.py tests/streams/test_broker_faults.py \
		tests/browser/test_stories.py tests/django/test_kills.py $(ARGS)

check: $(VENV)/.ready-dev  ## formatting, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.ready-dev  ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.ready-bench  ## measure TaskHarbor on this machine
	$(BIN)/python -m benchmarks $(ARGS)
	$(BIN)/python -m benchmarks.streams
	$(BIN)/python -m benchmarks.pages

bench-peers: $(VENV)/.ready-bench  ## measure against other libraries, interleaved in one run
	$(BIN)/python -m benchmarks --peers $(ARGS)
	$(BIN)/python -m benchmarks.django_backends

docs: $(VENV)/.ready-docs  ## the documentation as a site, in build/docs
	$(BIN)/python -m sphinx -W --keep-going -q -d build/docs-cache docs build/docs $(ARGS)
	$(BIN)/python -m tools.site build/docs

release: $(VENV)/.ready-release  ## build, read and try a version, in dist; nothing is published
	$(BIN)/python -m tools.release $(ARGS)

screenshots: $(VENV)/.ready-dev  ## the pictures of the dashboard in docs/images
	$(BIN)/python -m tools.screenshots

clean:  ## remove .venv and everything generated
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

venv:
	@if [ -x $(BIN)/python ]; then \
		$(BIN)/python $(NEW_ENOUGH) 2>/dev/null || { \
			echo "error: $(VENV) is broken or older than Python 3.11: run 'make clean', then try again" >&2; exit 1; }; \
	else \
		found=; \
		for candidate in $(CANDIDATES); do \
			if "$$candidate" $(NEW_ENOUGH) 2>/dev/null; then found="$$candidate"; break; fi; \
		done; \
		if [ -z "$$found" ]; then \
			echo "error: TaskHarbor needs Python 3.11 or newer (tried: $(CANDIDATES)): install one or name it, 'make PYTHON=/path/to/python3.11 ...'" >&2; exit 1; fi; \
		echo "creating $(VENV) with $$found"; \
		"$$found" -m venv $(VENV) || { rm -rf $(VENV); \
			echo "error: $$found cannot make a virtual environment (on Debian: apt install python3-venv)" >&2; exit 1; }; \
	fi

$(VENV)/.ready-run: pyproject.toml | venv
	$(PIP) install --quiet --editable .
	@touch $@

$(VENV)/.ready-dev: pyproject.toml | venv
	$(PIP) install --quiet --editable '.[dev]'
	@touch $@

$(VENV)/.ready-docs: pyproject.toml | venv
	$(PIP) install --quiet --editable '.[docs]'
	@touch $@

$(VENV)/.ready-release: pyproject.toml | venv
	$(PIP) install --quiet --editable '.[release]'
	@touch $@

$(VENV)/.ready-bench: pyproject.toml | venv
	$(BIN)/python -m benchmarks.installing
	@touch $@
