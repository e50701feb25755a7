# `make help` lists the targets. Every target may be run again; what is done already is not done twice.

CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/longboat
PYTHON := .venv/bin/python
UV_VERSION := 0.13.8
UV := $(CACHE)/uv-$(UV_VERSION)/bin/uv
EXTRAS := operator,runtime,tracking,cpu,dev,docs,bench
# One for each CPU, and one for what mostly waits (conftest.py).
WORKERS = $(shell expr $$(nproc) + 1)
PARALLEL = --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
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

# Makes targets one after another, and says how long each took.
define in_turn
@for step in $(1); do \
  begun=$$(date +%s); echo "=== $$step"; \
  $(MAKE) $$step || { echo "=== $$step FAILED after $$(($$(date +%s) - begun)) s"; exit 1; }; \
  echo "=== $$step took $$(($$(date +%s) - begun)) s"; \
done
endef

.PHONY: test
test: check-machine ## Run what a change has to pass: lint, component tests, and end-to-end tests on one test cluster (as root)
	$(call in_turn,setup lint binaries images test-parts test-cluster)

.PHONY: test-all
test-all: check-machine ## Run all tests but the faults: further cases, more test clusters, random examples (an hour, as root)
	$(call in_turn,setup lint binaries images test-all-parts test-alone test-all-cluster)

# Says in one line what this machine lacks, and what can be run instead.
.PHONY: check-machine
check-machine:
	@lacks=$$([ "$$(id -u)" -eq 0 ] || printf 'root, '; \
	  command -v apt-get > /dev/null || command -v buildah > /dev/null || printf 'Debian (or its packages $(PACKAGES)), '; \
	  command -v go > /dev/null || [ -x "$$(ls -t $(CACHE)/bin/kubebox-*/kubebox 2> /dev/null | head -n 1)" ] || printf 'Go 1.26, '); \
	[ -z "$$lacks" ] || { echo "a test cluster needs $${lacks%, }, which this machine lacks: run \`make test-fast\` instead"; exit 1; }

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
lint: setup ## Check style, types, import contracts and fragments of the changelog
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m tests.support.lint_waits
	$(PYTHON) -m tests.support.lint_english
	$(PYTHON) -m tests.support.lint_owners
	$(PYTHON) -m mypy
	.venv/bin/lint-imports
	@changes=$$($(PYTHON) -m towncrier build --draft --version next 2>&1) || { echo "$$changes"; exit 1; }

.PHONY: test-fast
test-fast: .venv/.installed ## Run the quick tests, in two minutes of one CPU: no vLLM, no Ray, no test cluster
	$(PYTHON) -m pytest -m "not cluster and not helm and not extended and not slow" --ignore tests/rollout/conformance tests

.PHONY: test-unit
test-unit: binaries bytecode ## Run the tests of `make test` that need no test cluster
	$(PYTHON) -m pytest -m "not cluster and not extended" $(PARALLEL) tests

.PHONY: test-parts
test-parts: binaries images bytecode ## Run the component tests, on test clusters too
	$(PYTHON) -m pytest -m "not extended" $(PARALLEL) e2e/tests/api tests

.PHONY: test-cluster
test-cluster: binaries images bytecode ## Run the end-to-end tests on one test cluster (CLUSTER=NAME uses a running one)
	$(PYTHON) -m pytest -m "cluster and not extended and not faults" $(E2E)

.PHONY: test-all-parts
test-all-parts: binaries images bytecode ## Run the component tests and all further cases, with random examples
	$(PYTHON) -m pytest -m "not alone" --hypothesis-profile search $(PARALLEL) e2e/tests/api tests

.PHONY: test-alone
test-alone: binaries images bytecode ## Run the tests that compare the machine before and after
	$(PYTHON) -m pytest -m alone tests/e2e_cluster

.PHONY: test-all-cluster
test-all-cluster: binaries images bytecode ## Run the end-to-end tests and all further cases (CLUSTER=NAME uses a running one)
	$(PYTHON) -m pytest -m "cluster and not faults" $(E2E)

E2E = e2e --ignore e2e/tests/api $(if $(CLUSTER),--cluster $(CLUSTER))

.PHONY: test-faults
test-faults: check-machine binaries images bytecode ## Run faults on a test cluster, then COUNT random jobs whose pods and engines come and go; skips faults that have passed at this commit
	commit=$$(git rev-parse HEAD) && passed=build/faults/$$commit.txt && \
	if [ -z "$$(git status --porcelain)" ]; then journal="--journal $$passed"; else journal=; fi && \
	{ $(PYTHON) -m pytest -m faults $$journal $(E2E) || [ $$? -eq 5 -a -n "$$journal" -a -s $$passed ]; }
	$(PYTHON) -m tests.driver.moving $(or $(COUNT),10000)

.PHONY: interleavings
interleavings: setup ## Run COUNT random interleavings of what can happen to a job's samples, under every round policy
	$(PYTHON) -m tests.rounds.interleavings $(or $(COUNT),10000)

.PHONY: stress
stress: setup ## Run TESTS (files, or any pytest arguments) COUNT times on a busy machine, and report what failed and how often
	$(if $(TESTS),,$(error TESTS is missing: say which tests to run, e.g. make stress TESTS='tests/agent tests/store' COUNT=10))
	$(PYTHON) -m tests.support.stress $(or $(COUNT),10) $(TESTS)

.PHONY: cpu-seconds
cpu-seconds: bytecode ## Record the CPU seconds of each test, which tell quick tests from slow ones (as root)
	$(PYTHON) -m pytest -m "not cluster and not helm" --record-cpu-seconds $(PARALLEL) tests

.PHONY: bench
bench: setup ## Run the benchmark NAME (`ls bench/*/measure.py`)
	@test -n "$(NAME)" || { echo "make bench NAME=...: one of"; ls bench/*/measure.py | cut -d/ -f2; exit 2; }
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

.PHONY: docs
docs: setup ## Build the documentation's site into build/docs, which has every page of the repository
	$(PYTHON) -m sphinx --quiet --fail-on-warning --keep-going --conf-dir docs --doctree-dir build/doctrees . build/docs
	cp build/docs/README.html build/docs/index.html

longboat-operator := --target operator
longboat-graders := --target graders
longboat-runtime := --target runtime
longboat-runtime-gpu := --target runtime --build-arg BACKEND=gpu
PUSHABLE := longboat-operator longboat-graders longboat-runtime longboat-runtime-gpu
push: BUILD ?= docker
push: IMAGE ?= longboat-operator longboat-graders longboat-runtime
push: TAG ?= $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
# Else a build after a push that failed begins anew.
push: export BUILDAH_LAYERS := true

.PHONY: push
push: ## Build images and push them to REGISTRY (BUILD=docker or buildah, IMAGE=longboat-runtime-gpu, TAG= instead of the version, ARGS=of the build)
	$(if $(REGISTRY),,$(error REGISTRY is missing: say where to push, such as REGISTRY=registry.example/team))
	$(if $(filter docker buildah,$(BUILD)),,$(error BUILD is docker or buildah, not $(BUILD)))
	$(if $(and $(strip $(IMAGE)),$(if $(filter-out $(PUSHABLE),$(IMAGE)),,known)),,$(error IMAGE is some of $(PUSHABLE), not $(or $(strip $(IMAGE)),empty)))
	@command -v $(BUILD) > /dev/null || { echo "$(BUILD) is missing: install it, or say BUILD=docker or BUILD=buildah"; exit 1; }
	@$(foreach image,$(IMAGE),$(BUILD) build $($(image)) $(ARGS) --tag $(REGISTRY)/$(image):$(TAG) . && ) true
	@$(foreach image,$(IMAGE),$(BUILD) push $(REGISTRY)/$(image):$(TAG) && ) true

.PHONY: release
release: binaries ## Write VERSION (x.y.z) and the changelog, and build what is published into build/release (IMAGES=1: the runtime's images too)
	@$(PYTHON) -m e2e.release "$(VERSION)" $(if $(IMAGES),--images)

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
