# make run, make test and make check each work as the only command on a fresh machine.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SOURCES := smartgen sim emu hw conf tests benchmarks setup.py
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: run test check format bench sizes clean

run: $(VENV)/.base  ## the first result: four schemes side by side
	$(BIN)/smartgen experiment=compare

test: $(VENV)/.dev  ## every test, over all cores
	$(BIN)/python -m pytest -n auto --dist worksteal

check: $(VENV)/.dev sizes  ## format, lint, types, architecture, file sizes
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

sizes:  ## lines of every package; no file may have more than 400
	@find smartgen sim emu hw tests benchmarks -name '*.py' ! -path '*/.*' | xargs wc -l | sort -n \
	  | awk '{ if ($$2 == "total") next; split($$2, part, "/"); lines[part[1]] += $$1; \
	           if ($$1 > 400) { print $$2 " has " $$1 " lines; 400 are allowed"; bad = 1 } } \
	         END { for (name in lines) printf "%6d %s\n", lines[name], name; exit bad }'

bench: $(VENV)/.dev  ## measure, and record beside the programs; TRACE=... for Azure's rows
	$(BIN)/python benchmarks/run.py
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/serving.py $(TRACE)

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "smartgen needs Python 3.11 or later, not " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.base: $(VENV)/bin/python pyproject.toml constraints.txt
	$(INSTALL) --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml constraints.txt
	$(INSTALL) --editable '.[dev]'
	@touch $@ $(VENV)/.base

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
