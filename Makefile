# Each target sets up what it needs; the plain commands behind it are in README.md.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
WITH_TORCH := .venv-torch/bin/python
FOREIGN := .venv-foreign/bin/python
JOBS ?= 4

# What is imported is compiled once, whatever the environment says: processes are started by the thousand.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: quickstart quickstart-docker test test-pythons torch foreign lint docs clean

quickstart: $(VENV)/.quickstart
	rm -rf runs/quickstart
	$(BIN)/prefect-ft run flows/quickstart.yaml

# Needs a Docker engine (DOCKER_HOST, else /var/run/docker.sock); its image is made of this Python.
quickstart-docker: $(VENV)/.quickstart
	rm -rf runs/quickstart-docker
	$(BIN)/python deployments/make_image.py prefect-ft/quickstart:latest numpy scikit-learn
	$(BIN)/prefect-ft run flows/quickstart-docker.yaml

# A file's tests run in one process, in their order: they share servers. Four processes on two cores: many tests wait.
test: $(VENV)/.dev
	PREFECT_FT_TORCH_PYTHON="$${PREFECT_FT_TORCH_PYTHON:-$(abspath $(wildcard $(WITH_TORCH)))}" \
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

# The pure tests and those of agents on each Python from 3.9 that this machine has; ARGS=--all runs all of them.
test-pythons: $(VENV)/.dev
	$(BIN)/python tests/support/pythons.py --jobs $(JOBS) $(ARGS)

# Ranks that train with torch have an interpreter of their own, as those of users do.
torch: $(WITH_TORCH)

$(WITH_TORCH):
	$(PYTHON) -m venv .venv-torch
	$@ -m pip install --quiet --disable-pip-version-check --no-compile torch==2.13.0 numpy

# Frameworks for the long tests of tests/foreign: PREFECT_FT_FOREIGN_PYTHON names this interpreter to them.
foreign: $(FOREIGN)

$(FOREIGN):
	$(PYTHON) -m venv .venv-foreign
	$@ -m pip install --quiet --disable-pip-version-check --no-compile \
	  torch==2.13.0 transformers==5.23.0 accelerate==1.15.0 lightning==2.6.6 \
	  jax==0.10.2 flax==0.12.8 optax==0.2.8 orbax-checkpoint==0.12.8 xgboost==3.2.0 mmengine==0.10.7

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The pages, in site/.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# --no-compile: modules are compiled when they are first imported, and most of them never are.
$(VENV)/.quickstart: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --no-compile hatchling editables
	$(PIP) --no-compile --no-build-isolation -e '.[quickstart]'
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --no-compile hatchling editables
	$(PIP) --no-compile --no-build-isolation -e '.[quickstart,dev]'
	touch $@ $(VENV)/.quickstart

$(VENV)/.docs: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --no-compile mkdocs-material
	touch $@

clean:
	rm -rf $(VENV) .venv-torch .venv-foreign .venv-3.* runs build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
