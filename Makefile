.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
STUB := src/soapstone/_core.pyi
CORE_SOURCES := CMakeLists.txt $(wildcard cpp/*/*.cpp cpp/*/*.hpp)
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt
# What stubtest says of nanobind's own function, class and enum types, whatever the stub holds.
NANOBIND_SELF := is not a function$$|metaclass differs$$|is a disjoint base at runtime|but runtime is not$$|\.__nb_enum__ is not present|__init__ is inconsistent, stub does not have \*
CORE_TESTS := tests/topology tests/searching $(addprefix tests/simulator/test_,taskgraph.py incremental.py bounds.py)
STUBGEN := $(BIN)/python -m nanobind.stubgen -q -m soapstone._core

# Else every process that a test starts compiles all modules that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test test-long test-busy test-gpu docs lint types check-stub unit sanitize bench bench-all paper stub clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/installed  ## make .venv and install soapstone into it; afterwards only rebuilds what changed

# The build requirements come first, so that the package builds in .venv itself and no second torch is fetched.
.venv/build-tools: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP_INSTALL) scikit-build-core nanobind cmake ninja
	@touch $@

.venv/installed: .venv/build-tools $(CORE_SOURCES)
	$(PIP_INSTALL) --no-build-isolation -e '.[dev]'
	@touch $@

demo: setup  ## run the example
	$(BIN)/python examples/demo.py

test: lint types check-stub unit  ## everything that must hold before a commit

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/clang-format --dry-run -Werror cpp/*/*.cpp cpp/*/*.hpp

types: setup
	$(BIN)/mypy --num-workers 2

check-stub: setup
	@mkdir -p build
	$(STUBGEN) -o build/_core.pyi
	@diff -u $(STUB) build/_core.pyi || { echo "$(STUB) is not what the core says; run: make stub" >&2; exit 1; }
	! $(BIN)/python -m mypy.stubtest --concise soapstone._core 2>&1 | grep -vE '$(NANOBIND_SELF)'

unit: setup
	$(BIN)/python -m pytest -n 2 -m "not long"

test-long: setup  ## the tests that `make test` leaves out: more seeds, more models
	$(BIN)/python -m pytest -n 2 -m long

test-busy: setup  ## the tests three times beside 8 busy processes, and those that ever failed: they depend on time
	$(BIN)/python -m tests.busy

test-gpu: setup  ## the tests that need a GPU: several NCCL ranks share it
	$(BIN)/python -m pytest tests/gpu

docs: setup  ## the documentation as a site, build/site/index.html; a link that leads nowhere is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

# A second environment with the core built for checking; it borrows the packages of the first.
SANITIZED := build/sanitized
.venv/sanitized: .venv/installed $(CORE_SOURCES) $(shell find src -name "*.py")
	$(PYTHON) -m venv --without-pip $(SANITIZED)
	$(BIN)/python -c 'import site; print(site.getsitepackages()[0])' \
	    > "$$($(SANITIZED)/bin/python -c 'import site; print(site.getsitepackages()[0])')/borrowed.pth"
	$(BIN)/python -m pip --python $(SANITIZED)/bin/python install --disable-pip-version-check --quiet \
	    --no-build-isolation --no-deps --force-reinstall -C build-dir=build/sanitizing -C cmake.define.SOAPSTONE_SANITIZE=ON .
	@touch $@

sanitize: .venv/sanitized  ## the core's tests, every address and all undefined behaviour checked
	ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)" \
	    $(SANITIZED)/bin/python -m pytest -n 2 $(CORE_TESTS)

bench: setup  ## the quick benchmarks
	$(BIN)/python -m benchmarks

paper: setup  ## the paper's evaluation again, quickly: pictures and a page in build/paper
	$(BIN)/python -m benchmarks.paper

bench-all: setup test-long  ## all benchmarks, and the long tests
	$(BIN)/python -m benchmarks --all
	$(BIN)/python -m benchmarks.paper --whole

stub: setup  ## write src/soapstone/_core.pyi anew from the compiled core
	$(STUBGEN) -o $(STUB)

clean:  ## remove what was built, and .venv
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
