# Everything here starts from nothing: Python 3.11 or newer and make. `make PYTHON=python3.12 …` chooses the Python.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
VLLM_DIR ?= .cache/vllm
FITS_CI := not vllm and not kill and not slow and not stack
WORKERS ?= 4
# The tests start hundreds of interpreters; none is to compile again what an earlier one has compiled.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo test lint format test-vllm test-kill test-airflow benchmark clean

help: ## say what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(READY) ## run an example DAG on made-up answers and show what it wrote; again: everything is skipped
	@$(BIN)/python .ci/demo.py

# Most tests wait for other processes, so several run at once; those that measure time have the machine to themselves.
test: lint ## the checks of `lint`, then every test that fits CI, WORKERS=4 at once
	$(BIN)/pytest -m "$(FITS_CI) and not alone" -n $(WORKERS) --dist worksteal
	$(BIN)/pytest -m "$(FITS_CI) and alone"

lint: $(READY) ## style, types and which room may import which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(READY) ## let ruff put the code in shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test-vllm: $(READY) ## build a real vLLM (CPU, tiny model, about 2 GB in .cache) and test against it
	@if PYTHON=$(PYTHON) bash tests/servers/real_vllm.sh "$(VLLM_DIR)"; then \
		VLLM_DIR="$(abspath $(VLLM_DIR))" $(BIN)/pytest -m vllm; \
	else \
		status=$$?; [ $$status -eq 69 ] && echo "skipped: no real vLLM can be had on this machine (reason above)" || exit $$status; \
	fi

test-kill: $(READY) ## kill jobs at many instants and compare with an undisturbed run; takes minutes
	$(BIN)/pytest -m "kill or slow" --timeout 900

benchmark: $(READY) ## ratios against datatrove, a bare client loop and a real vLLM; half an hour on a quiet machine, QUICK=1 for a look
	@VLLM_DIR="$(abspath $(VLLM_DIR))" $(BIN)/python tests/benchmarks/run.py $(if $(QUICK),--quick)

test-airflow: $(READY) ## a whole Airflow over PostgreSQL, with a real StatsD daemon; its parts are killed while tasks run; takes minutes
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null \
		|| { apt-get update -q && apt-get install -y -q --no-install-recommends postgresql; }
	$(BIN)/pytest -m stack --timeout 600

clean: ## remove what the targets above made
	rm -rf $(VENV) .cache .demo .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .coverage dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# uv where it can be had and reaches the packages, pip where not.
$(READY): pyproject.toml .ci/constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else f"Python 3.11 or newer is needed, this is {sys.version}; set PYTHON")'
	$(PYTHON) -m venv $(VENV)
	@if $(BIN)/python -m pip install -q uv -c .ci/constraints.txt \
		&& $(BIN)/uv pip install -q --python $(BIN)/python -c .ci/constraints.txt -e . --group dev; then :; \
	else \
		echo "uv could not install; pip does it" && \
		$(BIN)/python -m pip install -q --upgrade 'pip>=25.1' && \
		$(BIN)/python -m pip install -q -c .ci/constraints.txt -e . --group dev; \
	fi
	@touch $(READY)
