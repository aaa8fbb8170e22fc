# Everything here starts from a bare clone: `install` makes the virtual environment first where it is missing.
.DEFAULT_GOAL := help
.PHONY: help install compare test test-all lint clean

VENV ?= .venv
PYTHON ?=
# Extra words for the command, for example: make compare ARGS="--seeds 5 --jobs 4"
ARGS ?=
# pytest workers; 0 runs the tests in one process
TEST_JOBS ?= 2

# One thread for each worker: more only get in each other's way, and change the last digits.
PYTEST = OMP_NUM_THREADS=1 "$(VENV)/bin/pytest" -n $(TEST_JOBS)

help:
	@echo 'make compare    Transformer against S4D on digits, from scratch and self-pretrained -> runs/digits/report.html'
	@echo '                (more: ARGS="--seeds 5 --jobs 4 --set finetune.max_steps=300", --train-size, --dry-run;'
	@echo '                other data sets and every option: $(VENV)/bin/neverscratch compare --help)'
	@echo 'make test       the tests, without those marked slow    make test-all   all that need no accelerator'
	@echo 'make lint       ruff and mypy                           make install    only the virtual environment'
	@echo 'make clean      remove the virtual environment and caches; runs/ stays'
	@echo
	@echo 'PYTHON=python3.12 picks the interpreter (3.11 or newer), VENV=.venv-312 another folder.'
	@echo 'Linux without a graphics card: PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make compare fetches far less.'

install:
	@PYTHON="$(PYTHON)" VENV="$(VENV)" sh scripts/bootstrap.sh

compare: install
	@"$(VENV)/bin/neverscratch" compare digits $(ARGS)

test: install
	@$(PYTEST) -m "not slow and not gpu" $(ARGS)

test-all: install
	@$(PYTEST) -m "not gpu" $(ARGS)

lint: install
	@status=0; "$(VENV)/bin/ruff" check . || status=1; VENV="$(VENV)" sh scripts/typecheck.sh || status=1; exit $$status

clean:
	@if [ -f "$(VENV)/.made-by-make" ]; then rm -rf "$(VENV)"; elif [ -e "$(VENV)" ]; then echo "$(VENV) was not made by make and stays."; fi
	@rm -rf .venv-install.log .venv-lock build dist ./*.egg-info .pytest_cache .mypy_cache .ruff_cache
	@find modeling tasks recipes hub_cards tests -name __pycache__ -type d -prune -exec rm -rf {} +
