# Everything runs in .venv, made here with plain pip from constraints.txt. `make help` lists the targets.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
DOCS_STAMP := .venv/.installed-docs
# Tests run in two processes: one waits for Slurm while the other computes. Slow tests wait for most of their time.
# PROCESSES=0 runs all in one.
PROCESSES ?= 2
test-slow: PROCESSES = 4
# A crash ends the run: pytest-xdist would deal out finished files again and wait for their tests for ever.
PYTEST = $(BIN)/python -m pytest -n $(PROCESSES) --max-worker-restart=0

# An environment or a path of somebody else's must not leak into ours.
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV
# Hundreds of processes that the tests start would each compile the modules again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install slurm slurm-tests demo demo-slurm test coverage test-slow test-all gpu mutants lint format docs schemas clean

help:  ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## +' '{ printf "make %-10s %s\n", $$1, $$2 }'

install: $(STAMP)  ## .venv with the pinned packages; again only when pins or pyproject.toml change

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("error: $(PYTHON) is Python %d.%d; 3.11 or newer is needed: make PYTHON=python3.11" % sys.version_info[:2])'
	@echo "install: packages pinned in constraints.txt into .venv (some minutes the first time)"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --config-settings editable_mode=compat -c constraints.txt -e '.[dev,huggingface,mlflow,report,train,wandb]'
	@touch $@

slurm: $(STAMP)  ## Debian packages for the mini-cluster, where root on Debian or Ubuntu can have them
	@$(BIN)/python -m jobs.minicluster.packages

slurm-tests: $(STAMP)
	@$(BIN)/python -m jobs.minicluster.packages --tests

demo: $(STAMP) slurm  ## a sweep on 1, 2 and 4 nodes of this machine, then of 8 emulated nodes on a real Slurm; reports
	@echo "demo: training on 1, 2 and 4 nodes, one run after another; the processors of this machine are shared by all"
	@$(BIN)/python submit.py sweep --name demo --nodes 1 2 4 --set train.steps=150 --wait
	@$(BIN)/python submit.py report demo
	@if $(BIN)/python -m jobs.minicluster.packages --check; then $(MAKE) --no-print-directory demo-slurm; \
	  else echo "demo: not shown, because no real Slurm can run here: scaling to 8 emulated nodes with links"; fi

demo-slurm: $(STAMP)
	@echo "demo: 1 to 8 emulated nodes on a real Slurm: ranks wait instead of computing, links carry 1 Gbit/s"
	@$(BIN)/python submit.py cluster down --name demo >/dev/null 2>&1 || true # of a demo that was killed
	@$(BIN)/python submit.py cluster up --name demo --nodes 8 --gpus-per-node 1 --link 1gbit --no-accounting
	@$(BIN)/python submit.py cluster shell --name demo -- $(BIN)/python submit.py sweep sweeps/emulated.yaml \
	  --name emulated-on-slurm --set model.layer_mb=2 model.forward_s=0.08 model.backward_s=0.16 --cluster slurm --serial --wait; \
	  code=$$?; $(BIN)/python submit.py cluster down --name demo; exit $$code
	@$(BIN)/python submit.py report emulated-on-slurm

test: $(STAMP) slurm-tests  ## the tests but the slow ones
	@$(PYTEST) -m "not slow"

coverage: $(STAMP) slurm-tests  ## the tests but the slow ones, with coverage: two thirds more processor time
	@$(PYTEST) -m "not slow" --cov --cov-report=term

test-slow: $(STAMP) slurm-tests  ## the slow tests alone
	@$(PYTEST) -m slow

test-all: $(STAMP) slurm-tests  ## every test
	@$(PYTEST)

gpu: $(STAMP)  ## tests and measurements on the GPU of this machine, in under 9 minutes
	@$(BIN)/python -m benchmarks.gpu

mutants: $(STAMP)  ## mutation tests; hours, or minutes with SINCE=main, FUNCTIONS=100 or MODULES="jobs/core/journal.py"
	@OMP_NUM_THREADS=1 $(BIN)/python .ci/mutants.py $(MODULES) $(if $(SINCE),--since $(SINCE)) $(if $(FUNCTIONS),--functions $(FUNCTIONS))

lint: $(STAMP)  ## ruff, mypy, import contracts, lengths, budgets, and whether generated documents are current
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python .ci/check_sizes.py
	@$(BIN)/python .ci/check_budgets.py
	@$(BIN)/python -m docs.generate --check

format: $(STAMP)  ## let ruff rewrite what it can
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

docs: $(DOCS_STAMP)  ## the documents as a site in site/, for a browser without a server; fails on a broken link
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "docs: site/index.html"

$(DOCS_STAMP): pyproject.toml constraints.txt | $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]' --config-settings editable_mode=compat
	@touch $@

schemas: $(STAMP)  ## regenerate docs/reference, docs/schemas, options.json of the config, jobs/train.sbatch
	@$(BIN)/python -m docs.generate

clean:  ## remove caches and coverage data; runs/ and .venv stay
	rm -rf .pytest_cache .ruff_cache .mypy_cache .hypothesis htmlcov build site .coverage .coverage.*
	find . -path ./.venv -prune -o -path ./runs -prune -o -name __pycache__ -type d -exec rm -rf {} +
