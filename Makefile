# Every target makes .venv first when it is not there; every recipe is a command that works without make too.
PYTHON ?= python3
CASE ?= delay_cap4
TORCH ?= torch==2.13.0
TORCH_OPTIONS ?=
OPTIONS ?=
BIN = .venv/bin
export MPLBACKEND = Agg

.DEFAULT_GOAL := help
.PHONY: help setup profile analyze check verify sweep predict-check history cases doctor test test-quick lint bench diagnose-matrix clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' | awk -F'|' '{printf "  make %-16s %s\n", $$1, $$2}'
	@echo "  CASE=delay_cap64 names another case; OPTIONS='--ranks 2' goes to the command as it is"

setup: .venv/ready ## the virtual environment, with the torch that is there or a fresh one (TORCH_OPTIONS='--index-url ...')

profile: .venv/ready ## run CASE on every rank under nsys and report what overlapped
	@$(BIN)/ddpprof profile $(CASE) $(OPTIONS)

analyze: .venv/ready ## the numbers of the last run of CASE
	@$(BIN)/ddpprof analyze runs/$(CASE) $(OPTIONS)

check: .venv/ready ## assert on every rank what CASE must show
	@$(BIN)/ddpprof check runs/$(CASE) $(OPTIONS)

verify: .venv/ready ## the formal experiment: every case of the study at 4 ranks, and its acceptance table
	@$(BIN)/ddpprof verify --facts $(OPTIONS)

sweep: .venv/ready ## CASE at several bucket caps: which to take
	@$(BIN)/ddpprof sweep $(CASE) $(OPTIONS)

predict-check: .venv/ready ## captures CASE, predicts other bucket caps, runs them: predicted against measured
	@$(BIN)/python -m benchmarks.predict_check $(CASE) $(OPTIONS)

history: .venv/ready ## the trend of CASE over the runs kept
	@$(BIN)/ddpprof history $(CASE) $(OPTIONS)

cases: .venv/ready ## what can be profiled
	@$(BIN)/ddpprof cases $(OPTIONS)

doctor: .venv/ready ## what this machine can do, and what to fix
	@$(BIN)/ddpprof doctor $(OPTIONS)

test: .venv/ready ## all tests, the end-to-end ones under the real nsys included
	$(BIN)/python -m pytest $(OPTIONS)

test-quick: .venv/ready ## the tests that start no capture
	$(BIN)/python -m pytest -m 'not e2e' $(OPTIONS)

lint: .venv/ready ## ruff, and mypy on the installed package (it cannot follow a checkout's mapped folders)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	rm -rf build .cache/typed && $(BIN)/pip install -q --no-deps --target .cache/typed .
	MYPYPATH=.cache/typed $(BIN)/mypy --python-executable $(BIN)/python -p ddpprof

bench: .venv/ready ## the speed figures, as ratios
	$(BIN)/python -m benchmarks $(OPTIONS)

diagnose-matrix: .venv/ready ## is the diagnosis right? every case with a known cause, five times over
	$(BIN)/python -m benchmarks.diagnose_matrix $(OPTIONS)

clean: ## what was built (not runs/)
	rm -rf .venv .cache build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "Python 3.10 or newer is needed: make PYTHON=python3.12 ..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv `$(PYTHON) -c 'import importlib.util as u; print("--system-site-packages" if u.find_spec("torch") else "")'` .venv \
	  || { rm -rf .venv; echo "The venv module is not whole here. On Debian or Ubuntu: sudo apt-get install python3-venv"; exit 1; }
	@echo "setting up .venv (once)"
	@$(BIN)/python -c 'import sys, importlib.util as u; sys.exit(u.find_spec("torch") is None)' || $(BIN)/pip install -q $(TORCH_OPTIONS) '$(TORCH)'
	@$(BIN)/pip install -q -c constraints.txt -e '.[run,dev]'
	@touch $@
