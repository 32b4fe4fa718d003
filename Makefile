# `make demo` and `make test` are all that a newcomer needs; each makes .venv and installs into it first.

PYTHON ?= python3
BIN := .venv/bin
# Two processes: each test is single-threaded Python most of the time, and small tensors gain nothing from threads. Each
# process first takes tests that follow one another, so that two processes seldom compile the same kernel at once.
WORKERS ?= 2

# Honoured by pip in its build environments too, unlike -c.
export PIP_CONSTRAINT := constraints.txt
export PIP_BUILD_CONSTRAINT := constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Each test process imports several hundred modules: Python may keep their bytecode, whatever the caller's environment.
export PYTHONDONTWRITEBYTECODE :=

# pip must not run twice at once in one environment. .ci/run installs first and then passes INSTALLED=1.
ifndef INSTALLED
.NOTPARALLEL:
endif
.PHONY: demo test battery bounds lint format types borders docs generated pictures dist wheel check bench device clean

demo: .venv/demo.stamp
	$(BIN)/structinf demo sort

test: .venv/test.stamp
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal $(ARGS)

# Every public call of every structure with bad and unusual inputs, and the number of checks; `make test` runs a sample.
battery: .venv/test.stamp
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal tests/battery --full $(ARGS)

# The tests with bounds checks in all compiled loops, without tests of compile times and of child processes. The kernels
# are compiled again, into a cache folder of their own.
bounds: .venv/test.stamp
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$(CURDIR)/.cache/bounds_check \
		$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m "not cuda" \
		--ignore=tests/api/test_warmup.py --ignore=tests/api/test_import_cost.py --ignore=tests/docs $(ARGS)

# ---------------------------------------------------------------------------------------------- checks

check: lint types borders docs wheel test

lint: .venv/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python -m pytest -q tools/lint

format: .venv/dev.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: .venv/dev.stamp
	$(BIN)/pyright

borders: .venv/dev.stamp
	$(BIN)/lint-imports --cache-dir .cache/import_linter

docs: .venv/dev.stamp
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "the pages are in site/index.html"

# README's table and the architecture page, as the code is now.
generated: .venv/dev.stamp
	$(BIN)/python docs/generate.py

# All pictures of the documentation, or NAMES of them.
pictures: .venv/dev.stamp
	$(BIN)/python -m docs.pictures $(NAMES)

# The sdist, and the wheel made from it.
dist: .venv/dev.stamp
	rm -rf dist
	$(BIN)/python -m build --outdir dist .

# The wheel in a clean environment, away from the checkout.
wheel: dist
	PYTHON=$(BIN)/python bash tests/wheel/run dist/*.whl

# ---------------------------------------------------------------------------------------------- figures

bench: .venv/peers.stamp
	$(BIN)/python -m benchmarks.speed $(ARGS)

# On a machine with a GPU, which needs no network.
device:
	bash benchmarks/device/run $(ARGS)

# ---------------------------------------------------------------------------------------------- set-up

.venv/bin/python:
	$(PYTHON) -m venv .venv

# .venv/NAME.stamp: the extra NAME is installed, as pyproject.toml and constraints.txt have it now. The extra dev
# includes demo and test. Without bytecode: Python keeps that of the modules it imports, a tenth of those installed.
.venv/%.stamp: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install --no-compile --editable '.[$*]'
	touch $@ $(if $(filter dev,$*),.venv/demo.stamp .venv/test.stamp)

clean:
	rm -rf .venv build dist site .pytest_cache .ruff_cache .hypothesis .cache
