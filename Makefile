# `make demo` and `make test` create the environment on their first run. tests/README.md lists the longer tests.
PYTHON ?= python3
VENV ?= .venv
JOBS ?= 3

PY := $(VENV)/bin/python
CONSTRAINTS = .ci/constraints-py$(shell $(PYTHON) -c 'import sys; print(310 if sys.version_info < (3, 11) else 311)').txt
PIP = $(PY) -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS)

.DEFAULT_GOAL := help
.PHONY: help demo test check static fast pytest format test-torch test-gpu test-gpu-ort bench ui up down deploy docs clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 24

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 10) else "trtops needs Python 3.10 or newer; found %s. Try: make PYTHON=python3.11" % sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip  # that of Python 3.11 takes twice as long for the packages
	@touch $@

$(VENV)/.demo: $(VENV)/.made pyproject.toml $(wildcard .ci/constraints-*.txt)
	@echo "Installing trtops into $(VENV) (a minute or two, once)"
	$(PIP) -e '.[all]'
	@touch $@

# One call, which also installs what `.demo` does. Python compiles what it imports; pip would compile everything, one file
# after the other.
$(VENV)/.test: $(VENV)/.made pyproject.toml $(wildcard .ci/constraints-*.txt)
	@echo "Installing trtops and the test tools into $(VENV) (a minute or two, once)"
	$(PIP) --no-compile -e '.[test,check]'
	@touch $@ $(VENV)/.demo

$(VENV)/.team: $(VENV)/.demo
	@echo "Installing the server packages into $(VENV)"
	$(PIP) -e '.[team]'
	@touch $@

demo: $(VENV)/.demo ## build a real model in FP32, FP16 and INT8, check and log the engines, print a table
	@$(PY) -m examples.demo

test: $(VENV)/.test ## run the checks of `make check` and all tests that need no GPU, at the same time
	@$(MAKE) --no-print-directory -j2 static pytest

pytest: $(VENV)/.test
	@# Compiles everything once in a new checkout, and not in each process of the tests.
	@test -d tests/__pycache__ || PYTHONDONTWRITEBYTECODE= $(PY) -m pytest --collect-only -qq > /dev/null || true
	PYTHONDONTWRITEBYTECODE= $(PY) -m pytest -n $(JOBS) -q  # hundreds of child processes share compiled files

check: static fast ## check format, lint, types and import contracts, and run the fast tests of self-checks, limits and ranges

static: $(VENV)/.test
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-cache

# The fast part of modules that take minutes; the rest of them is marked as slow.
FAST = tests/ops/evaluation/test_self_check.py tests/ops/evaluation/test_limits.py tests/calibration/test_histogram.py
fast: $(VENV)/.test
	$(PY) -m pytest -q -m "not slow" $(FAST)

format: $(VENV)/.test ## format the code with ruff
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

test-gpu: ## run the tests that need TensorRT and a GPU, with the interpreter PYTHON; none is skipped
	TRTOPS_REQUIRE_GPU=1 $(PYTHON) -m pytest -q -m gpu -n 4 --durations=12

test-gpu-ort: ## run the tests that need ONNX Runtime with CUDA and a GPU, with the interpreter PYTHON; none is skipped
	TRTOPS_REQUIRE_GPU_ORT=1 $(PYTHON) -m pytest -q -m gpu_ort --durations=12

$(VENV)/.torch: $(VENV)/.test
	$(PIP) -e '.[torch]'
	@touch $@

test-torch: $(VENV)/.torch ## run the tests that need PyTorch, on the CPU
	$(PY) -m pytest -q tests/torch tests/frameworks

bench: $(VENV)/.test ## measure against Polygraphy on this machine; about ten minutes
	@missed=; for file in tests/benchmarks/bench_*.py; do case $$file in *_trt*.py) continue;; esac; \
	    echo "== $$file"; $(PY) -m $$(basename $$file .py | sed s/^/tests.benchmarks./) || missed="$$missed $$file"; done; \
	if [ -n "$$missed" ]; then echo "Missed goals:$$missed"; exit 1; fi; echo "All goals are met."

ui: $(VENV)/.demo ## serve the MLflow UI of the local store at http://127.0.0.1:5000
	$(VENV)/bin/trtops store ui

up: $(VENV)/.team ## start Prefect, MLflow and a worker on this machine; PREFECT_PORT, MLFLOW_PORT and DATABASE (a PostgreSQL server) change the defaults
	@$(VENV)/bin/trtops team up $(if $(PREFECT_PORT),--prefect-port $(PREFECT_PORT)) $(if $(MLFLOW_PORT),--mlflow-port $(MLFLOW_PORT)) $(if $(DATABASE),--database '$(DATABASE)')

down: $(VENV)/.demo ## stop what `make up` started
	@$(VENV)/bin/trtops team down

deploy: $(VENV)/.demo ## register the deployments of prefect.yaml with the server of `make up` or at PREFECT_API_URL
	@$(PY) -m flows.deployments

$(VENV)/.docs: $(VENV)/.demo
	@echo "Installing the documentation tools into $(VENV)"
	$(PIP) -e '.[docs]'
	@touch $@

docs: $(VENV)/.docs ## run the commands of the documentation, write their outputs into it, and the pages to build/docs
	$(PY) -m docs.outputs
	$(PY) -m mkdocs build --quiet --config-file docs/mkdocs.yml

clean: ## remove the environment and caches, but not mlruns/
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build *.egg-info
