# Two commands: `make demo` and `make test`.
#
# They make .venv if it is not there, and use it as it is if it is. On a machine that has its own torch (a CUDA build, no
# package registry) use that Python instead:   make demo PYTHON=python3 VENV=
PYTHON ?= python3
VENV   ?= .venv
TORCH  ?= 2.13.0
TRITON ?= 3.6.0
TESTS  ?= tests
BENCH  ?= --device auto --grid quick --out benchmarks/results/latest.json
# Two processes are as fast as two cores go; each test process runs its kernels on one thread.
JOBS   ?= 2

ifeq ($(strip $(VENV)),)
  RUN   := PYTHONPATH=src $(PYTHON)
  READY := src/flashlight.egg-info/entry_points.txt
else
  RUN   := $(VENV)/bin/python
  READY := $(VENV)/.flashlight
endif

.PHONY: demo test test-quick lint format docs bench clean

demo: $(READY)
	$(RUN) examples/demo.py

test: $(READY)
	OMP_NUM_THREADS=1 $(RUN) -m pytest -q -n $(JOBS) $(TESTS)

test-quick: $(READY)
	OMP_NUM_THREADS=1 $(RUN) -m pytest -q -n $(JOBS) -m "not slow" $(TESTS)

lint: $(READY)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

format: $(READY)
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

docs: $(READY)
	$(RUN) tools/write_docs.py

bench: $(READY)
	$(RUN) -m flashlight bench $(BENCH)

# The environment: torch first, so that nothing else chooses its version; then triton and the numpy its interpreter needs.
$(VENV)/.flashlight: pyproject.toml tools/install.sh
	PYTHON="$(PYTHON)" VENV="$(VENV)" TORCH="$(TORCH)" TRITON="$(TRITON)" bash tools/install.sh
	touch $@

# Without an environment, the metadata alone is enough for torch.compile to find the backend's entry point under PYTHONPATH=src.
src/flashlight.egg-info/entry_points.txt: pyproject.toml
	-$(PYTHON) -c "from setuptools import setup; setup()" -q egg_info

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
