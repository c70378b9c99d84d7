# Everything runs in .venv, which is made on first use and again when pyproject.toml changes.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup search test check trusted fuzz clean

help:  ## show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

setup: $(READY)  ## make .venv with the package (editable) and its test tools

$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	touch $@

search: $(READY)  ## search examples/attn.py; the result is in runs/attn
	$(BIN)/python -m mirage_formal.search examples/attn.py

test: $(READY)  ## run all tests, with coverage of at least 90 %
	$(BIN)/python -m pytest -n $(WORKERS) --cov=mirage_formal --cov-report=term:skip-covered --cov-fail-under=90

check: $(READY)  ## lint, format, types and the layer rule
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

trusted: $(READY)  ## count the lines that have to be trusted
	$(BIN)/python -m mirage_formal.check.kernel.trusted

clean:  ## remove what was built or written here, except runs/
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage .import_linter_cache
