# Two commands for a fresh machine: `make demo` and `make test`. Both set up `.venv` first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NATIVE := $(shell find native -name '*.cc' -o -name '*.h') CMakeLists.txt

EXTRAS := lightning,accelerate,ray

.PHONY: setup demo test test-extras lint format clean

setup: $(VENV)/.ready

# torch is pinned here, not in the package: this release is a CPU build for these machines, users bring their own.
# An existing torch is kept.
$(VENV)/.torch:
	@command -v $(PYTHON) >/dev/null || { echo "python 3.11 or newer is needed; set PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than 3.11; set PYTHON=/path/to/python3.11"; exit 1; }
	@command -v c++ >/dev/null || { echo "a C++20 compiler is needed (Debian: apt-get install g++)"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/pip install --quiet torch==2.13.0
	@touch $@

$(VENV)/.ready: $(VENV)/.torch pyproject.toml $(NATIVE)
	$(BIN)/pip install --quiet --editable '.[dev]'
	@touch $@

demo: setup
	$(BIN)/dovetail demo

test: setup
	$(BIN)/python -m pytest

# Lightning, Accelerate, Hugging Face's Trainer and Ray take minutes to start, and are not in the base install.
test-extras: setup
	$(BIN)/pip install --quiet --editable '.[dev,$(EXTRAS)]'
	$(BIN)/python -m pytest -m extras tests/extras

lint: setup
	$(BIN)/ruff check src tests examples
	$(BIN)/ruff format --check src tests examples
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(filter-out CMakeLists.txt,$(NATIVE))

format: setup
	$(BIN)/ruff check --fix src tests examples
	$(BIN)/ruff format src tests examples
	$(BIN)/clang-format -i $(filter-out CMakeLists.txt,$(NATIVE))

clean:
	rm -rf $(VENV) build
