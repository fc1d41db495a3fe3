# Everything a fresh clone needs is set up on first use, in .venv and in the user's cache folder.
# Needs: Python 3.11 or later, Java 17 or later.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo challenge check test test-slow test-long coverage lint bench campaign docs lock clean

demo: $(READY)
	@$(BIN)/kmirror demo

challenge: $(READY)
	@$(BIN)/kmirror sandbox challenge

check: lint
	@$(BIN)/pytest -q -m "not long and not slow" -n 2 --max-worker-restart 0 tests/unit tests/cli

test: $(READY)
	@$(BIN)/pytest -m "not long and not slow" -n 5 $(PYTEST_ARGS)

test-slow: $(READY)
	@$(BIN)/pytest -m "slow and not long" -n 3 $(PYTEST_ARGS)

test-long: $(READY)
	@$(BIN)/pytest -m "long or slow"

# What the tests without brokers reach; COVERAGE=tests also counts those with brokers and Spark, which takes an hour.
# Processes that tests start are not counted.
COVERAGE ?= tests/unit tests/cli

coverage: $(READY)
	@$(BIN)/pytest -q -m "not long and not slow" -n 2 --cov --cov-report=term $(COVERAGE)

lint: $(READY)
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: $(READY)
	@$(BIN)/python -m bench

campaign: $(READY)
	@$(BIN)/python -m campaign $(CAMPAIGN_ARGS)

docs: $(READY)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

$(READY): pyproject.toml .ci/constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "kmirror needs Python 3.11 or later; say which with PYTHON=python3.12 make …" >&2; exit 1; }
	@echo "Setting up $(VENV) with the libraries of .ci/constraints.txt (once, about a minute) …"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes \
		--requirement deploy/container/build-constraints.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-build-isolation \
		--requirement .ci/constraints.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

# Takes the newest versions that pyproject.toml allows, with their hashes; run it after changing dependencies there.
# With UPGRADE= it keeps the versions that are locked, where they are still allowed.
UPGRADE := --upgrade
LOCK := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate $(UPGRADE) \
	--custom-compile-command "make lock"

lock: $(READY)
	@$(BIN)/$(LOCK) deploy/container/build.in --output-file deploy/container/build-constraints.txt
	@$(BIN)/$(LOCK) pyproject.toml --output-file deploy/container/constraints.txt
	@$(BIN)/$(LOCK) pyproject.toml --group dev --constraint deploy/container/constraints.txt \
		--constraint deploy/container/build-constraints.txt --output-file .ci/constraints.txt

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .coverage
