# `make help` lists the targets. Every target may be run again; what is done already is not done twice.

CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/longboat
PYTHON := .venv/bin/python
UV_VERSION := 0.13.8
UV := $(CACHE)/uv-$(UV_VERSION)/bin/uv
EXTRAS := operator,runtime,tracking,cpu,dev,bench
# One for each CPU, and one for what mostly waits (conftest.py).
WORKERS := $(shell expr $$(nproc) + 1)
PARALLEL := --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
PACKAGES := buildah containerd containernetworking-plugins debootstrap gcc iproute2 iptables libnuma1 runc

.NOTPARALLEL:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# Tests start hundreds of processes, each of which would compile all that it imports of this checkout once more.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help
help: ## Show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# --- Everything ---------------------------------------------------------------------------------------------------

.PHONY: test
test: ## Set up what is missing, then run all checks and all tests (as root: the cluster needs it)
	@for step in setup lint binaries images test-parts test-e2e; do \
	  begun=$$(date +%s); echo "=== $$step"; \
	  $(MAKE) $$step || { echo "=== $$step FAILED after $$(($$(date +%s) - begun)) s"; exit 1; }; \
	  echo "=== $$step took $$(($$(date +%s) - begun)) s"; \
	done

# --- Set-up -------------------------------------------------------------------------------------------------------

.PHONY: setup
setup: packages .venv/.installed ## Install Debian packages (as root), uv and the Python environment .venv

.PHONY: packages
packages:
	@if ! command -v apt-get > /dev/null; then echo "not Debian: the test cluster needs $(PACKAGES)"; exit 0; fi; \
	missing=$$(for name in $(PACKAGES); do \
	  dpkg-query -W -f '$${db:Status-Status}' $$name 2> /dev/null | grep -qx installed || printf '%s ' $$name; done); \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" -ne 0 ]; then echo "not root: for the test cluster, install $$missing"; exit 0; fi; \
	apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q --yes --no-install-recommends $$missing

$(UV):
	python3 -m venv $(CACHE)/uv-$(UV_VERSION)
	$(CACHE)/uv-$(UV_VERSION)/bin/pip install --quiet uv==$(UV_VERSION)

.venv/.installed: $(UV) pyproject.toml constraints/python.txt constraints/overrides.txt
	$(UV) venv --quiet --python 3.11 --allow-existing .venv
	VIRTUAL_ENV=.venv $(UV) pip install --compile-bytecode --constraints constraints/python.txt --overrides constraints/overrides.txt \
	  --editable '.[$(EXTRAS)]'
	touch $@

# Pods of test clusters see the checkout read-only.
.PHONY: bytecode
bytecode: setup
	@$(PYTHON) -m compileall -q crds operator runtime e2e

.PHONY: binaries
binaries: setup ## Build Kubernetes, CoreDNS and Helm, one binary, into the cache (about 10 minutes, once)
	@$(PYTHON) -m e2e.cluster binaries

.PHONY: images
images: setup ## Build the images that tests use (about a minute, once; then only what changed)
	@$(PYTHON) -m e2e.cluster images

.PHONY: image-runtime
image-runtime: setup ## Build the full runtime image (gigabytes; tests don't need it; BACKEND=gpu for the one with CUDA)
	@$(PYTHON) -m e2e.cluster images runtime$(if $(filter gpu,$(BACKEND)),-gpu)

# --- Checks -------------------------------------------------------------------------------------------------------

.PHONY: lint
lint: setup ## Check style, types and import contracts
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	.venv/bin/lint-imports

.PHONY: test-fast
test-fast: binaries ## Run the tests that take seconds
	$(PYTHON) -m pytest -m "not cluster and not slow"

.PHONY: test-unit
test-unit: binaries bytecode ## Run the tests that need no cluster
	$(PYTHON) -m pytest -m "not cluster" $(PARALLEL)

.PHONY: test-parts
test-parts: binaries images bytecode ## Run the tests of the parts, on test clusters too
	$(PYTHON) -m pytest -m "not alone" $(PARALLEL) e2e/tests/api tests

.PHONY: test-e2e
test-e2e: binaries images bytecode ## Run the tests that need the machine to themselves: of the test cluster, then of the whole (CLUSTER=NAME uses a running one)
	$(PYTHON) -m pytest -m alone tests/e2e_cluster
	$(PYTHON) -m pytest -m "cluster and not faults" e2e --ignore e2e/tests/api $(if $(CLUSTER),--cluster $(CLUSTER))

.PHONY: interleavings
interleavings: setup ## Run COUNT random interleavings of what can happen to a job's samples, under every round policy
	$(PYTHON) -m tests.rounds.interleavings $(or $(COUNT),10000)

.PHONY: test-elastic
test-elastic: binaries images bytecode ## Run COUNT jobs whose pods come and go and whose engines are reshaped and killed at any moment, then faults on a test cluster while jobs scale, reshape and move CPUs
	$(PYTHON) -m tests.driver.moving $(or $(COUNT),10000)
	$(PYTHON) -m pytest -m faults e2e $(if $(CLUSTER),--cluster $(CLUSTER))

.PHONY: bench
bench: setup ## Run the benchmark NAME (`ls bench`)
	@test -n "$(NAME)" || { echo "make bench NAME=...: one of"; ls bench; exit 2; }
	$(PYTHON) -m bench.run $(NAME)

# --- Use ----------------------------------------------------------------------------------------------------------

QUICKSTART := examples/quickstart

.PHONY: run
run: libnuma .venv/.installed build/quickstart/train.jsonl ## Train the quickstart on this machine, without a cluster and without root
	.venv/bin/longboat run $(QUICKSTART)/rljob.yaml --volume /data=build --config-map quickstart=$(QUICKSTART)/base --output build/run $(ARGS)

.PHONY: libnuma
libnuma:
	@python3 -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2> /dev/null || \
	  { echo "libnuma.so.1 is missing, which vLLM needs on CPUs: install it as root (Debian: apt-get install libnuma1)"; exit 1; }

# The last file that it writes.
build/quickstart/train.jsonl: $(QUICKSTART)/base/build_base.py $(QUICKSTART)/base/countdown.py | .venv/.installed
	$(PYTHON) $(QUICKSTART)/base/build_base.py build/quickstart

.PHONY: cluster-up
cluster-up: binaries ## Start a Kubernetes cluster on this machine (NAME=..., NODES=...)
	@$(PYTHON) -m e2e.cluster up $(if $(NAME),--name $(NAME)) $(if $(NODES),--nodes $(NODES))

.PHONY: cluster-down
cluster-down: ## Remove it without a trace (NAME=...)
	@$(PYTHON) -m e2e.cluster down $(if $(NAME),--name $(NAME))

.PHONY: demo
demo: ## Run an RLJob from scratch on the test cluster and show what happens
	@for step in setup binaries images; do \
	  begun=$$(date +%s); echo "=== $$step"; $(MAKE) $$step || exit 1; \
	  split="$$split$$step $$(($$(date +%s) - begun)) s  "; \
	done; \
	$(PYTHON) -m e2e.demo --split "$$split" $(ARGS)

.PHONY: chaos
chaos: binaries images bytecode ## Inject random faults into real jobs, which must lose nothing (SEED=, MINUTES=, POLICY= one or all)
	@$(PYTHON) -m e2e.chaos $(if $(SEED),--seed $(SEED)) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(POLICY),--policy $(POLICY)) $(ARGS)

.PHONY: generate
generate: setup ## Write generated files: CRDs, reference pages, parts of the chart, and a sample's states and way in docs/extending.md
	$(PYTHON) -m longboat_crds.generate
	$(PYTHON) -m tests.extending.page

.PHONY: clean
clean: ## Remove what was built in this checkout (the cache stays: see clean-cache)
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: clean-cache
clean-cache: ## Take all clusters down and remove binaries and images from the cache
	@if [ -x $(PYTHON) ]; then \
	  for folder in $(CACHE)/clusters/*/; do \
	    [ ! -d "$$folder" ] || $(PYTHON) -m e2e.cluster down --name $$(basename $$folder) || exit 1; \
	  done; \
	fi
	rm -rf $(CACHE)
