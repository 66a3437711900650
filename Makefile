# `make demo` shows the product on a real folder; `make test` builds and passes the tests. Both need only Python 3.11
# or newer, a C++20 compiler and make; everything else goes into the project's own environment, .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := $(shell find kernels ohdiff repo_format -name '*.py' -o -name '*.pyi' -o -name '*.cpp' -o -name '*.hpp' \
             -o -name '*.cu' -o -name '*.cuh') \
           pyproject.toml CMakeLists.txt

.PHONY: build test demo lint bench clean

build: $(VENV)/.built

$(VENV)/.created:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	touch $@

$(VENV)/.built: $(VENV)/.created $(SOURCES)
	$(BIN)/python -m pip install --quiet '.[dev]'
	touch $@

test: build
	cd tests && ../$(BIN)/pytest

lint: build
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p ohdiff -p ohdiff_format

demo: build
	PATH="$(CURDIR)/$(BIN):$$PATH" sh docs/demo.sh

bench: build
	$(BIN)/python bench/components.py

clean:
	rm -rf $(VENV) build dist
