# Each target sets up what it needs; the plain commands behind it are in README.md.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: quickstart quickstart-docker test lint clean

quickstart: $(VENV)/.quickstart
	rm -rf runs/quickstart
	$(BIN)/prefect-ft run flows/quickstart.yaml

# Needs a Docker engine (DOCKER_HOST, else /var/run/docker.sock); its image is made of this Python.
quickstart-docker: $(VENV)/.quickstart
	rm -rf runs/quickstart-docker
	$(BIN)/python deployments/make_image.py prefect-ft/quickstart:latest numpy scikit-learn
	$(BIN)/prefect-ft run flows/quickstart-docker.yaml

test: $(VENV)/.dev
	$(BIN)/python -m pytest

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

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

clean:
	rm -rf $(VENV) runs build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
