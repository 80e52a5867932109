# demo and test set everything up by themselves: they need Python 3.11, pip and make.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test check fix golden bench soak setup

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "wanc needs $(PYTHON); name yours: make PYTHON=…"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(READY)  ## the toy -> a bundle -> three videos and out/demo/sheet.png
	$(BIN)/python tools/demo.py

test: $(READY)  ## everything but the full repetitions of soak
	$(BIN)/python -m pytest -n 2 --dist loadgroup

check: $(READY)  ## only looks
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fix: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

golden: $(READY)  ## rewrite the expected files under tests/golden
	$(BIN)/python -m pytest tests/golden --update-golden

bench: $(READY)
	$(BIN)/python -m bench

soak: $(READY)  ## repetitions at full count
	$(BIN)/python -m pytest tests -m soak --soak
