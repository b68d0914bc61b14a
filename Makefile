# make help lists the targets. Needs python3 (3.10 to 3.13) and make; everything else goes into .venv.
PYTHON ?= python3
ARGS ?=
N ?= 2
# of make tpu: jax, or tensorflow for TensorFlow's own build for TPUs
RUNTIME ?= jax

BIN := .venv/bin
READY := .venv/.ready
PEERS := .venv/.peers
TPU_JAX := .venv-tpu-jax
TPU_TENSORFLOW := .venv-tpu-tensorflow
TPU_COMPILE := .venv-tpu-compile
AUDIT := .venv-audit
DOCS := .venv-docs
NEXT_VERSIONS := .venv-next
DIST := .venv-dist
# of make test-next: packages in versions that pyproject.toml may not allow yet
NEXT ?= tensorflow tensorboard keras hydra-core omegaconf hydra-joblib-launcher hydra-submitit-launcher numpy protobuf
PIP := -m pip install --quiet --disable-pip-version-check --progress-bar off

# PYTHON was given, but is that of a new environment only
ifneq ($(origin PYTHON),file)
ifneq ($(wildcard $(READY)),)
ifneq ($(shell $(PYTHON) -V),$(shell $(BIN)/python -V))
$(warning .venv is there and has $(shell $(BIN)/python -V), which is used; for PYTHON=$(PYTHON): make clean, then again)
endif
endif
endif

.PHONY: help train memory sweep workers tpu tpu-compile lint test test-runs test-slow test-share test-next test-tpu slurm reference site screens torture bench bench-full audit lock dist clean
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-12s%s\n", $$1, $$2 }' Makefile

train: $(READY) ## train, each update from 4 micro-batches; ARGS replace that: make train ARGS="model=lenet5 accum.steps=2"
	@$(BIN)/accumtrain $(or $(ARGS),accum.steps=4)
	@echo "to go on: . $(BIN)/activate, then accumtrain --help"

memory: $(READY) ## compare stored, recomputed and reversed activations: a table and a picture; ARGS as for train
	@$(BIN)/accumtrain job=memory $(or $(ARGS),batch_size=512 accum.steps=1)

sweep: $(READY) ## train once per combination: make sweep ARGS="batch_size=32,64,128 train.epochs=2"
	@$(BIN)/accumtrain --multirun $(ARGS)

workers: $(READY) ## train in N local processes, as on N machines: make workers N=2 ARGS="batch_size=64"
	@$(BIN)/accumtrain --workers $(N) $(ARGS)

tpu: .venv-tpu-$(RUNTIME)/.ready ## train on a Cloud TPU VM, in an environment of its own; ARGS as for train; RUNTIME=tensorflow
	@.venv-tpu-$(RUNTIME)/bin/accumtrain device=tpu device.runtime=$(RUNTIME) $(ARGS)

tpu-compile: $(READY) $(TPU_COMPILE)/.ready ## what a run would take on a TPU, by its compiler: ARGS="model=revnet104 ..."
	@ACCUMTRAIN_TPU_COMPILER=$(CURDIR)/$(TPU_COMPILE)/bin/python $(BIN)/accumtrain job=plan device=tpu $(ARGS)

lint: $(READY) ## lint, layout and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint ## lint and the everyday tests, of every room those that neither train nor start processes; ARGS go to pytest
	@echo "the everyday tests take up to 10 minutes on two quiet cores"
	$(BIN)/pytest -m "not slow and not slurm and not run" --numprocesses 2 --dist loadfile $(ARGS)

test-runs: $(READY) ## the tests that train, compile graphs or start processes, and end in seconds; ARGS go to pytest
	@echo "these tests take up to 40 minutes on two quiet cores"
	$(BIN)/pytest -m "run and not slow and not slurm" --numprocesses 2 --dist loadfile $(ARGS)

test-slow: $(READY) ## the tests that take minutes; ARGS go to pytest
	$(BIN)/pytest -m slow $(ARGS)

test-share: $(READY) ## the part of the slow tests that this commit has to run, for ten minutes
	$(BIN)/python -m pytest -p tests.share -m slow --share $(shell git rev-parse HEAD) --numprocesses 2 --dist loadfile \
		--no-loadscope-reorder $(ARGS)

test-next: ## the everyday tests with the next versions, candidates too, of all or of NEXT="hydra-core omegaconf"
	$(CHECK_PYTHON)
	@echo "setting up $(NEXT_VERSIONS)"
	@$(PYTHON) -m venv --clear $(NEXT_VERSIONS)
	@$(NEXT_VERSIONS)/bin/python $(PIP) --editable '.[dev]'
	@$(NEXT_VERSIONS)/bin/python $(PIP) --pre --upgrade $(NEXT) # pip says which pins of pyproject.toml they exceed
	@$(NEXT_VERSIONS)/bin/python $(PIP) --pre --force-reinstall --no-deps keras # TensorFlow's candidates put keras-nightly over it
	@$(NEXT_VERSIONS)/bin/python -m pip list --disable-pip-version-check
	$(NEXT_VERSIONS)/bin/pytest -m "not slow and not slurm and not run" --numprocesses 2 --dist loadfile $(ARGS)

test-tpu: $(TPU_TENSORFLOW)/.ready ## the fast tests, on the CPU, with TensorFlow's build for TPUs; ARGS go to pytest
	$(TPU_TENSORFLOW)/bin/pytest $(ARGS)

slurm: $(READY) ## training and sweeps on a SLURM of two nodes, made of this machine (root, Linux); ARGS go to pytest
	tests/cluster/with_slurm $(BIN)/pytest -m slurm tests/cluster $(ARGS)

reference: $(READY) ## write docs/reference.md anew, after a change of a key, its rule or its meaning
	@$(BIN)/python -m accumtrain.cli.help > .reference.md
	@mv .reference.md docs/reference.md

site: $(DOCS)/.ready ## build the pages of docs/ into site/; a link that leads nowhere is an error
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict # not --quiet, with which it counts no warnings
	@$(DOCS)/bin/python .ci/opens_offline.py site
	@echo "site/index.html; with search: $(PYTHON) -m http.server --directory site"

screens: $(DOCS)/.ready ## the path of a new user, from the wheel: make screens, as they stand in docs/
	$(DOCS)/bin/python .ci/screens/walk.py docs/screens

torture: $(READY) ## kill trainings at random moments: make torture ARGS="--stops 1000 --workers 2"
	@PYTHONPATH=. $(BIN)/python tests/faults/torture.py $(ARGS)

bench: $(PEERS) ## beside Keras and PyTorch, in minutes; ARGS go to benchmarks/compare.py
	$(BIN)/python benchmarks/compare.py --small $(ARGS)

bench-full: $(PEERS) ## all cases, an hour or so on a quiet machine; writes benchmarks/RESULTS.md
	$(BIN)/python benchmarks/compare.py --output benchmarks/RESULTS.md $(ARGS)

audit: $(READY) $(AUDIT)/.ready ## is what is pinned installed, and nothing of it known to be vulnerable (needs the network)
	$(BIN)/python .ci/installed_is_pinned.py requirements/constraints.txt
	$(AUDIT)/bin/pip-audit --strict --progress-spinner off --disable-pip --require-hashes \
		--requirement requirements/hashed.txt

lock: $(AUDIT)/.ready ## write requirements/hashed.txt anew, after a change of the constraints or of pyproject.toml
	@grep '^#' requirements/hashed.txt > requirements/.hashed.txt
	@$(AUDIT)/bin/uv pip compile --quiet --no-config --no-python-downloads --universal --python-version 3.10 --no-header \
		--no-annotate --generate-hashes --constraint requirements/constraints.txt pyproject.toml >> requirements/.hashed.txt
	@mv requirements/.hashed.txt requirements/hashed.txt

dist: $(DIST)/.ready ## build the sdist and the wheel into dist/, and check what an index would say of them
	@rm -rf dist
	@$(DIST)/bin/python -m build --outdir dist .
	@$(DIST)/bin/twine check --strict dist/*
	@echo "to install both in clean environments: .ci/install_dist $(PYTHON) ..."

clean: ## remove the environments and caches; runs/ stays
	rm -rf .venv $(TPU_JAX) $(TPU_TENSORFLOW) $(TPU_COMPILE) $(AUDIT) $(DOCS) $(NEXT_VERSIONS) $(DIST) site build dist .pytest_cache .mypy_cache .ruff_cache
	find accumtrain benchmarks tests -name __pycache__ -type d -prune -exec rm -rf {} +

define CHECK_PYTHON
@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if (3, 10) <= v[:2] <= (3, 13) else \
	f"accumtrain needs Python 3.10 to 3.13, $(PYTHON) is {v[0]}.{v[1]}; name another: make PYTHON=python3.12 ...")'
endef

# One stamp for each whole environment: made anew when the pins or the package's needs change, and from nothing then, so
# that nothing stays of what is not needed any more. What a setup that failed has left is gone on with, and so is a link,
# as others may use what it leads to.
VENV = $(PYTHON) -m venv $(if $(wildcard $@),$(shell test -L $(@D) || echo --clear)) $(@D)

$(READY): pyproject.toml requirements/constraints.txt
	$(CHECK_PYTHON)
	@echo "setting up .venv (a few minutes, once)"
	@$(VENV)
	@$(BIN)/python $(PIP) --constraint requirements/constraints.txt --editable '.[dev]'
	@touch $@

$(PEERS): $(READY)
	@echo "installing PyTorch to compare with"
	@$(BIN)/python $(PIP) --constraint requirements/constraints.txt --editable '.[peers]'
	@touch $@

$(TPU_JAX)/.ready: pyproject.toml requirements/constraints.txt
	@echo "setting up $(TPU_JAX) (a few minutes, once; needs Python 3.11 or newer)"
	@$(VENV)
	@$(TPU_JAX)/bin/python $(PIP) --constraint requirements/constraints.txt --editable '.[jax-tpu]'
	@touch $@

$(TPU_TENSORFLOW)/.ready: pyproject.toml requirements/tpu.txt
	$(CHECK_PYTHON)
	@echo "setting up $(TPU_TENSORFLOW) (a few minutes, once)"
	@$(VENV)
	@$(TPU_TENSORFLOW)/bin/python $(PIP) --no-deps --requirement requirements/tpu.txt --editable .
	@touch $@

$(TPU_COMPILE)/.ready: requirements/tpu-compile.txt
	@echo "setting up $(TPU_COMPILE) (needs Python 3.11 or newer)"
	@$(VENV)
	@$(TPU_COMPILE)/bin/python $(PIP) --no-deps --requirement requirements/tpu-compile.txt
	@touch $@

$(AUDIT)/.ready: requirements/audit.txt
	$(CHECK_PYTHON)
	@echo "setting up $(AUDIT)"
	@$(VENV)
	@$(AUDIT)/bin/python $(PIP) --no-deps --requirement requirements/audit.txt
	@touch $@

# pip 26.3 installs a dependency group without the project
$(DOCS)/.ready $(DIST)/.ready: .venv-%/.ready: pyproject.toml requirements/constraints.txt
	$(CHECK_PYTHON)
	@echo "setting up $(@D)"
	@$(VENV)
	@$(@D)/bin/python $(PIP) pip==26.3
	@$(@D)/bin/python $(PIP) --constraint requirements/constraints.txt --group $*
	@touch $@
