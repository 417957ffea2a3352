# make demo: provision the sandbox over SSH, serve a model, find how many users it holds (about 4 minutes)
# make test: the whole suite; make check: linters and types; make bench: the figures in README and docs
PYTHON ?= python3
SEEDS ?= 10
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test test-matrix check format bench lock wheel clean system-demo system-test

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

demo: system-demo $(READY) ## the whole job on this machine, no server needed
	$(BIN)/deployctl up --plan sandbox --engine embedded --model gemma3:270m --budget 2m

test: system-test $(READY) ## run every test that this machine can run
	$(BIN)/python -m pytest

test-matrix: system-test $(READY) ## every way in, every fault, a cut at every step (lab hosts, root, an hour)
	DEPLOYCTL_TEST_MATRIX=1 $(BIN)/python -m pytest $(wildcard tests/e2e/test_lab_*.py) tests/lab/test_gpu_driver.py

check: system-demo $(READY) ## ruff, format, mypy, yamllint, ansible-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/yamllint --strict .
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/ansible-lint --offline -q

format: $(READY) ## rewrite the code in the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY) ## measure what README and docs say, ratios side by side
	$(BIN)/python benchmarks/run.py $(if $(WRITE),--write)
	$(BIN)/python benchmarks/search.py --seeds $(SEEDS)

lock: ## make requirements.lock anew from pyproject.toml (needs uv)
	uv pip compile pyproject.toml --extra sandbox --extra dev --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-header --upgrade -o requirements.lock

wheel: $(READY) ## build the wheel into dist/
	$(BIN)/python -m hatchling build -t wheel

clean: ## remove what the targets above made
	rm -rf $(VENV) dist .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis .ansible

system-demo:
	@scripts/system-packages demo

system-test:
	@scripts/system-packages test

$(READY): requirements.lock pyproject.toml | system-demo
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if (3, 11) <= v < (3, 14) else \
	  f"deployctl needs Python 3.11 to 3.13, and $(PYTHON) is {v[0]}.{v[1]}: make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@
