# Two commands: `make demo` (the main job, on the embedded data) and `make test` (every check).
# Each makes its own .venv from nothing; `make .venv` alone only makes the environment.
PYTHON ?= python3
BIN := .venv/bin
THREADS := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
WORKERS ?= auto

.PHONY: demo test lint types unit benchmark clean

# .venv is ready when its stamp is newer than what defines it.
.venv: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "bombus needs Python 3.11 or newer, this is %d.%d; set PYTHON=python3.12" % sys.version_info[:2])'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable '.[dev]'
	touch .venv/ready

demo: .venv
	$(BIN)/bombus demo --out demo-report

test: lint types unit

lint: .venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv
	$(BIN)/mypy

unit: .venv
	$(THREADS) $(BIN)/pytest -n $(WORKERS) --dist worksteal

# The README's table of the rivals: make benchmark WEIGHTS="WRN-28-10.safetensors", on a GPU.
benchmark: .venv
	PATH="$(CURDIR)/$(BIN):$$PATH" sh lab/benchmark.sh $(WEIGHTS)

clean:
	rm -rf .venv demo-report .pytest_cache .mypy_cache .ruff_cache
