# Two commands do everything: `make demo` and `make test`. Both make the environment on their first run.
PYTHON ?= python3
VENV ?= .venv
JOBS ?= 3

PY := $(VENV)/bin/python
CONSTRAINTS = .ci/constraints-py$(shell $(PYTHON) -c 'import sys; print(310 if sys.version_info < (3, 11) else 311)').txt
PIP = $(PY) -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS)

.DEFAULT_GOAL := help
.PHONY: help demo test check format bench bench-gpu test-kills test-long test-gpu test-gpus test-postgres test-matrix zoo ui up down status deploy serve constraints clean test-fuzz test-sigkills triage audits docs test-browser

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

$(VENV)/.team: $(VENV)/.demo
	@echo "Installing what servers need into $(VENV)"
	$(PIP) -e '.[team]'
	@touch $@

demo: $(VENV)/.demo ## build a real model in FP32, FP16 and INT8, evaluate and log the engines, print a table
	@$(PY) -m flows.demo

test: $(VENV)/.test check ## all tests that need no GPU, after `make check`
	PYTHONDONTWRITEBYTECODE= $(PY) -m pytest -n $(JOBS) -q  # tests start hundreds of processes, which would all compile anew

check: $(VENV)/.test ## format, lint, types, import contracts
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-cache

format: $(VENV)/.test ## let ruff put the code in order
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

test-kills: $(VENV)/.test ## the tests that kill workers in the middle of a campaign; take some minutes
	TRTOPS_TEST_KILLS=1 $(PY) -m pytest -q tests/team tests/flows/test_dask.py -k killed

test-browser: $(VENV)/.test ## the pages of the real servers in Debian's chromium (apt install chromium); takes some minutes
	TRTOPS_TEST_BROWSER=1 $(PY) -m pytest -q tests/reports

test-long: $(VENV)/.test ## campaigns with all their seeds and kills, and a crowd of 400 builds, of which `make test` tries a part; takes some minutes
	TRTOPS_TEST_LONG=1 $(PY) -m pytest -n $(JOBS) -q tests/tactics tests/ops/campaign tests/tracking/test_crowd.py

test-fuzz: $(VENV)/.test ## N crafted models, N damaged files and N damaged stores through all commands (N=200)
	TRTOPS_TEST_FUZZ=$(or $(N),2000) $(PY) -m pytest -q tests/backend/onnx/test_fuzz.py
	$(PY) -m tests.attacks.fuzz --cases $(or $(N),200)

test-sigkills: $(VENV)/.test ## N commands and flows killed at random moments, some with their server (N=50)
	$(PY) -m tests.attacks.sigkills --kills $(or $(N),50)

audits: $(VENV)/.test ## audit and gate at full size: 20 builds of two releases rebuilt, 1,000 runs, 72 candidates, 20 regressions, 100 repeats; an hour
	$(PY) tests/benchmarks/bench_audit.py --rebuild
	$(PY) tests/benchmarks/bench_audit.py --full
	$(PY) tests/benchmarks/bench_gate.py planted
	mkdir -p build && for release in 1.20.1 1.24.4 1.28.0; do echo "onnxruntime==$$release" > build/ort-$$release.txt; done
	$(PY) tests/benchmarks/bench_gate.py matrix build/ort-1.20.1.txt build/ort-1.24.4.txt build/ort-1.28.0.txt
	$(PY) tests/benchmarks/bench_gate.py repeats --count 100

triage: $(VENV)/.test ## planted faults: named by triage and bundled; some minutes, with tables
	$(PY) -m tests.triage.shown

test-gpu: ## the tests that need TensorRT and a GPU, with the Python that PYTHON names; none may be skipped
	TRTOPS_REQUIRE_GPU=1 $(PYTHON) -m pytest -q -m gpu -n 4 --durations=12

test-gpus: ## the tests that need two GPUs, likewise
	TRTOPS_REQUIRE_GPU=1 $(PYTHON) -m pytest -q -m multi_gpu

test-postgres: $(VENV)/.test ## the tests that need PostgreSQL (Debian: apt install postgresql); none may be skipped
	TRTOPS_REQUIRE_POSTGRES=1 $(PY) -m pytest -q -m postgres

test-matrix: $(VENV)/.test ## the wheel outside the checkout: each Python there is, oldest and newest releases; takes long
	$(PY) tests/matrix.py $(VENV)-matrix

zoo: $(VENV)/.test ## real architectures by their exporters, and what each command makes of them beside Polygraphy; takes long
	test -x $(VENV)-zoo/bin/python || $(PYTHON) -m venv $(VENV)-zoo
	$(VENV)-zoo/bin/python -m pip install --quiet -r tests/real/requirements.txt
	$(VENV)-zoo/bin/python tests/real/export.py $(VENV)-zoo/models
	$(PY) tests/real/table.py $(VENV)-zoo/models

bench: $(VENV)/.test ## benchmarks on this machine, as ratios against Polygraphy in one run; about ten minutes
	@missed=; for file in tests/benchmarks/bench_*.py; do case $$file in *_trt*.py) continue;; esac; \
	    echo "== $$file"; $(PY) $$file || missed="$$missed $$file"; done; \
	if [ -n "$$missed" ]; then echo "A goal was missed in:$$missed"; exit 1; fi; echo "Every goal was kept."

bench-gpu: ## benchmarks that need TensorRT and a GPU, with the Python that PYTHON names
	$(PYTHON) tests/benchmarks/bench_trt.py
	TRTOPS_BENCH_SECONDS=600 $(PYTHON) tests/benchmarks/bench_trt_replay.py small cnn transformer eager

ui: $(VENV)/.demo ## open the MLflow UI on the local store, at http://127.0.0.1:5000
	$(PY) -m trtops.tracking.store ui

up: $(VENV)/.team ## start Prefect, MLflow and a worker on this machine; PREFECT_PORT and MLFLOW_PORT choose other ports
	@$(VENV)/bin/trtops team up $(if $(PREFECT_PORT),--prefect-port $(PREFECT_PORT)) $(if $(MLFLOW_PORT),--mlflow-port $(MLFLOW_PORT))

down: $(VENV)/.demo ## end what `make up` started
	@$(VENV)/bin/trtops team down

status: $(VENV)/.demo ## say what is up, where, and since when
	@$(VENV)/bin/trtops team status

deploy: $(VENV)/.demo ## register the deployments of prefect.yaml with the server of `make up`, or at PREFECT_API_URL
	@$(PY) -m flows.deployments deploy

serve: $(VENV)/.demo ## serve all deployments from one process, without work pools, until Ctrl-C
	@$(PY) -m flows.deployments serve

$(VENV)/.docs: $(VENV)/.demo
	@echo "Installing what the documentation needs into $(VENV)"
	$(PIP) -e '.[docs]'
	@touch $@

docs: $(VENV)/.docs ## write the documentation into build/docs; links that lead nowhere are errors
	$(PY) -m mkdocs build --quiet --config-file docs/mkdocs.yml

constraints: ## resolve the newest releases anew and write them down for this Python
	$(PYTHON) -m venv $(VENV)-fresh
	$(VENV)-fresh/bin/python -m pip install --quiet -e '.[test,check,team,dask,docs]'
	(head -n 1 $(CONSTRAINTS); $(VENV)-fresh/bin/python -m pip freeze --exclude-editable) > $(VENV)-fresh/pins
	mv $(VENV)-fresh/pins $(CONSTRAINTS)
	rm -rf $(VENV)-fresh

clean: ## remove the environment and caches; mlruns/ stays
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build *.egg-info
