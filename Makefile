# Every command prints its steps and their time; `make` without arguments lists the commands.
PYTHON ?= python3
VENV := .venv/bin
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
# Hundreds of Python programs start in a test run: none should compile its modules again.
export PYTHONDONTWRITEBYTECODE :=
.DEFAULT_GOAL := help
# The loader splits LD_PRELOAD at blanks and colons, env takes a program with = as a variable, and
# loader, CMake or make expand the other signs.
CHECKOUT := $(shell LC_ALL=C; [[ $$(pwd -P) == *[!a-zA-Z0-9/._+@~,$$'\x80'-$$'\xff'-]* ]] && pwd -P)
ifneq ($(CHECKOUT),)
$(error checkout: invalid path $(CHECKOUT): must not contain a space, a colon or another sign than / . _ - + @ ~ and comma; move it)
endif
.PHONY: help setup base show build demo demo-picture demo-node demo-faults cluster cluster-down test test-all e2e endure gpu lint sanitize fuzz bench faults storm images lock release-check clean

help:  ## this list
	@awk -F ':.*## *' '/^[a-z0-9-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:  ## install what is missing (.venv, Debian packages as root, containerd, Kubernetes, Helm, images), build the C code
	@$(PYTHON) -m tools.setup

base:  # the same without Kubernetes, which only the cluster tests need
	@$(PYTHON) -m tools.setup base

show:  # what the demo's first chapter needs; it builds Kubernetes itself
	@$(PYTHON) -m tools.setup demo

build:  ## the C libraries only, on a machine after `make setup`
	@cmake --preset dev
	@cmake --build --preset dev --parallel $$(nproc)

demo: show  ## a private Kubernetes cluster that runs Koordinator's example pod end to end (root; KEEP=1)
	@$(VENV)/python -m lab.demo $${AT:+--at "$$AT"} $(if $(KEEP),--keep) $(ARGS)

demo-picture: show  ## the same, written into docs/examples/demo.md (root)
	@$(VENV)/python -m lab.demo --picture

demo-node: show  ## one GPU, two pods of half a GPU each, on a private containerd (root)
	@$(VENV)/python -m lab.demo.node $(ARGS)

demo-faults: show  ## the agent stops, the agent hangs, an annotation is forged: the effect on pods (root)
	@$(VENV)/python -m lab.demo.faults $(ARGS)

cluster: base  ## a private Kubernetes cluster of one node, with simulated GPUs (root; GPUS=2x23040Mi DIALECTS=kai BARE=1)
	@$(VENV)/python -m lab.cluster up $${AT:+--at "$$AT"} $${GPUS:+--gpus "$$GPUS"} $${SERVE:+--serve "$$SERVE"} $${DIALECTS:+--dialects "$$DIALECTS"} $(if $(BARE),--bare)

cluster-down:  ## stop the cluster and remove it completely
	@$(VENV)/python -m lab.cluster down $${AT:+--at "$$AT"}

images: base  ## the product's images as OCI archives, without a daemon or a registry (ARGS=--help)
	@$(VENV)/python -m tools.images $(ARGS)

release-check: base  ## build the distributions and check them, the workflows, the chart and the changelog
	@$(VENV)/python -m tools.release_check $(ARGS)

lock:  ## update the versions of requirements.lock that pyproject.toml asks for (ARGS=--upgrade: all)
	@$(VENV)/python -m tools.lock $(ARGS)

lint: base  ## words, ruff, mypy --strict, import contracts, clang-format
	@$(VENV)/python -m tools.lint

PYTEST := $(VENV)/python -m pytest --numprocesses 6 --dist loadfile --no-loadscope-reorder

test: setup  ## lint, then the tests: 9 minutes on two cores (root, else without containers and clusters)
	@$(VENV)/python -m tools.lint
	@$(PYTEST) -m 'not thorough' --durations 20 $(ARGS)

test-all: setup  ## the same with sanitizers, fuzzing, aarch64, the wheel, long races, e2e: most of an hour
	@$(PYTHON) -m tools.setup test-all
	@$(VENV)/python -m tools.lint
	@$(PYTEST) --durations 20 $(ARGS)

e2e: setup  ## the tests of the whole cluster and the short storms, after building their programs (root)
	@$(VENV)/python -m pytest -m e2e tests/e2e tests/cluster tests/dialects $(ARGS)

endure: setup  ## half an hour of pod churn on a whole cluster, with components killed (root; ARGS=--help)
	@$(VENV)/python -m tests.e2e.endure $(ARGS)

storm: setup  ## 1,000 pods at once on a real kube-scheduler, with components killed: 20 minutes (ARGS=--help)
	@$(VENV)/python -m tests.cluster $(ARGS)

gpu: base  ## three minutes of rows and measurements on this machine's GPU (ARGS=--list, --help)
	@$(VENV)/python -m tests.gpu $(ARGS)

sanitize: base  ## the rows of the library's matrix with ASan and UBSan, then with TSan
	@GPUSLICE_PRESET=asan $(VENV)/python -m pytest tests/shim -k test_row_ $(ARGS)
	@GPUSLICE_PRESET=tsan $(VENV)/python -m pytest tests/shim -k test_row_ $(ARGS)

fuzz: base  ## fuzz the parsers for 5 minutes each (ARGS="--seconds 3600 session")
	@$(VENV)/python -m tests.fuzz $(ARGS)

faults: base  ## the fault matrix on five containerds, built once (root; ARGS=--help)
	@$(VENV)/python -m bench.faults $(ARGS)

bench: base  ## measure the cost of the library against the same without it (ARGS=--quick)
	@$(VENV)/python -m bench shim $(ARGS)

clean:  ## remove build outputs; the cache of programs stays
	rm -rf build dist .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	@echo "kept: the programs in $${GPUSLICE_CACHE:-$${XDG_CACHE_HOME:-$$HOME/.cache}/gpuslice}"
