# Each target makes .venv on first use, from the pinned versions in constraints.txt.

BIN := .venv/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt

.PHONY: help demo test soak lint format bench clean

help:
	@echo "make demo     a thousand scripted agents run, are killed, and finish; no key, no server"
	@echo "make test     format, lint, types, layers, spelling, and all tests with small fixed counts"
	@echo "make soak     the same crash, fault and property tests with full counts"
	@echo "make lint     the checks without the tests"
	@echo "make format   rewrite the sources in the project's format"
	@echo "make bench    run the benchmarks, a quarter of an hour; results go to benchmarks/results/ and docs/benchmarks.md"
	@echo "make clean    remove .venv, caches and build results"

demo: .venv/base.stamp
	@$(BIN)/nanotrio demo

test: .venv/dev.stamp
	@$(BIN)/python tests/run.py

soak: .venv/dev.stamp
	@$(BIN)/python tests/run.py --soak

lint: .venv/dev.stamp
	@$(BIN)/python tests/run.py --lint

format: .venv/dev.stamp
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format .

bench: .venv/dev.stamp
	@$(BIN)/python -m benchmarks $(BENCH)
	@$(BIN)/python -m benchmarks._tables

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is written last, so an install that failed half way is done again.

.venv/base.stamp: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing nanotrio into .venv"
	@$(PIP) -e .
	@touch $@

.venv/dev.stamp: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing nanotrio and what its tests need into .venv"
	@$(PIP) -e '.[dev]'
	@touch $@ .venv/base.stamp

.venv/bin/python:
	@for python in python3 python3.13 python3.12 python3.11; do \
	    if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        echo "making .venv with $$($$python --version)"; \
	        "$$python" -m venv .venv && exit 0; \
	        rm -rf .venv; \
	        echo "$$python cannot make a virtual environment; on Debian and Ubuntu: apt-get install python3-venv" >&2; \
	        exit 1; \
	    fi; \
	done; \
	echo "nanotrio needs Python 3.11 or newer, and none is on PATH as python3, python3.13, python3.12 or python3.11" >&2; \
	exit 1
