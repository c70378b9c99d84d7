# Everything runs in .venv, which is made on first use and again when pyproject.toml changes.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
READY := .venv/.ready
DOCS_READY := .venv/.docs
WORKERS ?= 2

# Tests start thousands of processes, each of which would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup search test test-coverage test-torch test-browser check docs docs-links dist fuzz corpus replay reproduce gpu-runs gpu-test gpu-bench gpu-sanitize

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 20

setup: $(READY)  ## make .venv with the package (editable) and its test tools

# Without bytecode: Python compiles what it loads when it first does, a small part of what there is.
PIP_INSTALL = $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --editable

$(INSTALLED): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip uninstall --quiet --yes setuptools 2>/dev/null  # of Python 3.11's venv; nothing needs it
	@echo "Installing what a search needs into .venv: two solvers and numerical packages, about 450 MB."
	$(PIP_INSTALL) .
	touch $@

$(READY): $(INSTALLED)
	$(PIP_INSTALL) '.[test]'
	touch $@

# Again, it continues what is there (a finished run is verified again and nothing of it is searched again): nothing that
# was built or measured from that run is removed. --force would search again and remove it.
search: $(INSTALLED)  ## search examples/attn.py; the result is in runs/attn
	$(BIN)/python -m mirage_formal.search examples/attn.py $(if $(wildcard runs/attn/run.json),--resume)
	@echo "Next: $(BIN)/mirage-formal check runs/attn      # check all evidence independently"
	@echo "      $(BIN)/mirage-formal report runs/attn     # see candidates, proofs and kernels as a page"
	@echo "      $(BIN)/mirage-formal build runs/attn      # write the CUDA C++ of the best candidates"

test: $(READY)  ## run all tests
	$(BIN)/python -m pytest -n $(WORKERS) --dist=worksteal --ignore=tests/browser

# Apart from the tests: with coverage they take a sixth longer.
test-coverage: $(READY)  ## run all tests, with coverage of at least 90 %
	$(BIN)/python -m pytest -n $(WORKERS) --dist=worksteal --ignore=tests/browser --cov=mirage_formal --cov-report=term:skip-covered --cov-fail-under=90

# In an environment of its own: a browser's driver is 130 MB that nothing else needs. Where no Chromium is found, or
# MIRAGE_CHROMIUM names none, the tests are skipped and say so.
BROWSER := .venv-browser/bin

test-browser: .venv-browser/.ready  ## open reports in a headless Chromium, with axe-core
	$(BROWSER)/python -m pytest tests/browser -ra

.venv-browser/.ready: pyproject.toml
	test -x $(BROWSER)/python || $(PYTHON) -m venv .venv-browser
	$(BROWSER)/python -m pip install --quiet --disable-pip-version-check --editable '.[browser]' 'pytest>=9' 'hypothesis>=6.150'
	touch $@

# Torch is 5 GB with CUDA, so it is installed for this target only; `make test` skips these tests where it is not there.
# TORCH_INDEX: another index of its wheels, such as that of builds for the CPU.
TORCH_READY := .venv/.torch
TORCH_INDEX ?=

$(TORCH_READY): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) \
		--editable '.[test,torch-test]'
	touch $@

test-torch: $(TORCH_READY)  ## install torch and transformers into .venv, run the tests of mirage_formal.torch
	$(BIN)/python -m pytest -n $(WORKERS) --dist=worksteal tests/torch \
		'tests/documents/test_examples.py::test_the_code_of_a_page_runs_and_prints_what_the_page_says[README.md]' \
		'tests/documents/test_examples.py::test_the_code_of_a_page_runs_and_prints_what_the_page_says[docs/start/pytorch.md]'

check: $(READY)  ## lint, format, types and the layer rule
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers $(WORKERS)
	$(BIN)/lint-imports --no-cache

FUZZ_PAIRS ?= 50000
FUZZ_GRAPHS ?= 18000
FUZZ_MUTANTS ?= 10000
ATTACKS ?= 50000

fuzz: $(READY)  ## an adversary against the checker; prover against checker and float64: pairs, programs, mutants
	$(BIN)/python -m benchmarks.attack --trials $(ATTACKS) --jobs $(WORKERS)
	$(BIN)/python -m benchmarks.fuzz_prover --pairs $(FUZZ_PAIRS) --graphs $(FUZZ_GRAPHS) --mutants $(FUZZ_MUTANTS) \
		--jobs $(WORKERS)

corpus: $(READY)  ## search the programs of models and textbooks in examples/corpus; a table in runs/corpus
	$(BIN)/python -m benchmarks.corpus --check --build --emulate

replay: $(READY)  ## search every example and compare what is found and printed with benchmarks/replay.sha256
	$(BIN)/python -m benchmarks.replay

# Rows that are finished there are not measured again.
REPRODUCE ?= runs/reproduce

reproduce: $(READY)  ## the paper's search statistics measured again; in runs/reproduce, about 40 minutes
	$(BIN)/python -m mirage_formal.reproduce table5 --out $(REPRODUCE)
	$(BIN)/python -m mirage_formal.reproduce workloads --out $(REPRODUCE)
	$(BIN)/python -m mirage_formal.reproduce oracle --out $(REPRODUCE)

# The site needs packages that the tests do not; they are installed beside them, once.
$(DOCS_READY): pyproject.toml | $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	touch $@

SPHINX = $(if $(OFFLINE),MIRAGE_DOCS_OFFLINE=1 )$(BIN)/python -m sphinx -c tools/site -d build/docs/doctrees

docs: $(DOCS_READY)  ## build the site into build/docs/html, warnings are errors; OFFLINE=1 fetches nothing
	$(SPHINX) -W --keep-going -q -b html docs build/docs/html

docs-links: $(DOCS_READY)  ## look whether what the documents link to outside is there; needs a network
	$(SPHINX) -W --keep-going -q -b linkcheck docs build/docs/links

dist: $(READY)  ## build the wheel and the source archive into dist/, and look at them as a package index would
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl

# The examples' runs, with kernels; made where the solvers are, used where the GPU is (the three targets below need
# CuPy, torch, NumPy and msgspec of $(GPU_PYTHON), and what gpu-runs has made).
GPU_PYTHON ?= python3
GPU_RUNS ?= runs/gpu
BATCHES ?= 1 8 16
CANDIDATES ?= 24

gpu-runs: $(READY)  ## search the examples at b = 1, 8, 16 and build the kernels of their best candidates
	$(BIN)/python -m benchmarks.gpu_runs --out $(GPU_RUNS) --count $(CANDIDATES) --batches $(BATCHES)
	$(BIN)/python -m tests.kit.kernels.device_kernels $(GPU_RUNS)/fixtures

gpu-test:  ## on a GPU: tests of launching, numerics and capture
	MIRAGE_GPU_KERNELS=$(GPU_RUNS)/fixtures $(GPU_PYTHON) -m pytest -q -s -W default -p no:cacheprovider -m gpu tests/device/gpu

# Again, it continues what was cut. GPU_OPTIONS: of benchmarks/gpu_stages.py (--jobs, --limit, --retry, ...).
GPU_OPTIONS ?=

gpu-bench:  ## on a GPU: kernels beside torch, torch.compile (two modes), attention libraries and reading alone
	$(GPU_PYTHON) -m benchmarks.gpu_bench $(GPU_RUNS)/*-b* --top $(CANDIDATES) --out $${OUT:-$(GPU_RUNS)} \
	  --markdown $${OUT:-$(GPU_RUNS)}/results.md $(GPU_OPTIONS)

gpu-sanitize:  ## on a GPU: compute-sanitizer memcheck and racecheck over every best candidate
	bench=$${OUT:-$(GPU_RUNS)}/gpu_bench.json; \
	$(GPU_PYTHON) -m benchmarks.gpu_sanitize $(GPU_RUNS)/*-b* --out $${OUT:-$(GPU_RUNS)} \
	  $$(test -f $$bench && echo --bench $$bench)
