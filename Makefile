# The two commands: `make serve` and `make test`. All the work is in scripts/setup_env.py.
#
#   make serve                      set up what is missing, then serve on 127.0.0.1:8000
#   make serve ARGS="--port 9000"   the same with flags of `ferrum-local serve`
#   make test                       set up, then ruff, mypy and pytest
#   make setup BACKEND=cuda         build llama.cpp for cpu, cuda, metal or vulkan
#   make setup PREBUILT=cpu         take a prebuilt llama.cpp (cpu, metal, cu124 …) instead
#   make bundle                     a program for apps to ship, without Python, in dist/

PYTHON ?= python3
UV ?= uv
BACKEND ?=
PREBUILT ?=
ARGS ?=
PYTEST_ARGS ?=

BIN := .venv/bin
SETUP := $(PYTHON) scripts/setup_env.py \
	$(if $(BACKEND),--backend $(BACKEND)) $(if $(PREBUILT),--prebuilt $(PREBUILT))

.PHONY: help setup setup-test serve lint test bundle test-bundle bench soak lock clean

help:
	@sed -n '3,8s/^# *//p' Makefile

setup:
	@$(SETUP)

setup-test:
	@$(SETUP) --dev --models starter test

serve: setup
	@exec $(BIN)/ferrum-local serve $(ARGS)

lint: setup-test
	$(BIN)/ruff check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest $(PYTEST_ARGS)

# A frozen program for apps to ship; see docs/sidecar.md.
bundle: setup-test
	$(BIN)/python scripts/build_sidecar.py $(ARGS)

# What is built in dist/ does what the source does.
test-bundle:
	$(BIN)/python -m pytest tests/smoke --ferrum-command dist/ferrum-local/ferrum-local $(PYTEST_ARGS)

# After a change of dependencies in pyproject.toml; needs uv. Runs online.
lock:
	UV_CUSTOM_COMPILE_COMMAND="make lock" $(UV) pip compile pyproject.toml --universal \
		--python-version 3.10 --generate-hashes --upgrade --quiet -o requirements.lock
	UV_CUSTOM_COMPILE_COMMAND="make lock" $(UV) pip compile pyproject.toml --universal \
		--python-version 3.10 --generate-hashes --upgrade --quiet \
		--extra dev -c requirements.lock -o requirements-dev.lock

# Leaves the models and the built llama.cpp in the user's cache.
clean:
	rm -rf .venv .setup build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Speed, beside a peer if ARGS names one; see docs/benchmarks.md. Wants a quiet machine.
bench: setup
	@exec $(BIN)/python scripts/bench_llm.py $(ARGS)

# Ten minutes of mixed load, disconnects and bad input; ends with an account of what went wrong.
soak: setup-test
	@exec $(BIN)/python scripts/soak.py $(ARGS)
