# Two commands do everything: `make demo` and `make test`. Both make the environment on their first run.
PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2

PY := $(VENV)/bin/python
CONSTRAINTS = .ci/constraints-py$(shell $(PYTHON) -c 'import sys; print(310 if sys.version_info < (3, 11) else 311)').txt
PIP = $(PY) -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS)

.DEFAULT_GOAL := help
.PHONY: help demo test check format bench bench-gpu test-gpu test-gpus ui deploy constraints clean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 24

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 10) else "trtops needs Python 3.10 or newer; found %s. Try: make PYTHON=python3.11" % sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.demo: $(VENV)/.made pyproject.toml $(wildcard .ci/constraints-*.txt)
	@echo "Installing trtops into $(VENV) (a minute or two, once)"
	$(PIP) -e .
	@touch $@

$(VENV)/.test: $(VENV)/.demo
	@echo "Installing the test tools into $(VENV)"
	$(PIP) -e '.[test,check]'
	@touch $@

demo: $(VENV)/.demo ## build a real model in FP32, FP16 and INT8, judge and log the engines, print a table
	@$(PY) -m flows.demo

test: $(VENV)/.test check ## all tests that need no GPU, after `make check`
	$(PY) -m pytest -n $(JOBS) -q

check: $(VENV)/.test ## format, lint, types, import contracts
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-cache

format: $(VENV)/.test ## let ruff put the code in order
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

test-gpu: ## the tests that need TensorRT and a GPU, with the Python that PYTHON names; none may be skipped
	TRTOPS_REQUIRE_GPU=1 $(PYTHON) -m pytest -q -m gpu -n 4 --durations=12

test-gpus: ## the tests that need two GPUs, likewise
	TRTOPS_REQUIRE_GPU=1 $(PYTHON) -m pytest -q -m multi_gpu

bench: $(VENV)/.test ## benchmarks on this machine, as ratios against the field's tool in one run
	@for file in tests/benchmarks/bench_*.py; do case $$file in *_trt.py) continue;; esac; echo "== $$file"; $(PY) $$file || exit 1; done

bench-gpu: ## benchmarks that need TensorRT and a GPU, with the Python that PYTHON names
	$(PYTHON) tests/benchmarks/bench_trt.py

ui: $(VENV)/.demo ## open the MLflow UI on the local store, at http://127.0.0.1:5000
	$(PY) -m trtops.tracking.store ui

deploy: $(VENV)/.demo ## register the deployments of prefect.yaml with the Prefect server that PREFECT_API_URL names
	TRTOPS_CHECKOUT=$${TRTOPS_CHECKOUT:-$(CURDIR)} $(VENV)/bin/prefect --no-prompt deploy --all

constraints: ## resolve the newest releases anew and write them down for this Python
	$(PYTHON) -m venv $(VENV)-fresh
	$(VENV)-fresh/bin/python -m pip install --quiet -e '.[test,check,team,dask]'
	(head -n 1 $(CONSTRAINTS); $(VENV)-fresh/bin/python -m pip freeze --exclude-editable) > $(VENV)-fresh/pins
	mv $(VENV)-fresh/pins $(CONSTRAINTS)
	rm -rf $(VENV)-fresh

clean: ## remove the environment and caches; mlruns/ stays
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build *.egg-info
