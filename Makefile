# `make demo` shows Innkeeper at work on real models; `make test` proves it. Both set up what they need first.
# PYTHON=… names the interpreter to use, BACKEND=cpu|cuda12|cuda13|metal the MLX back end; both are found when left out.

RIGHT_PYTHON := -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do $$p $(RIGHT_PYTHON) && echo $$p && break; done)
BIN := .venv/bin
STAMP := .venv/.installed
# Another BACKEND than the one installed is installed in its place; without BACKEND the one that was named last stays.
BACKEND ?= $(patsubst $(STAMP)-%,%,$(wildcard $(STAMP)-*))
CHOSEN := $(if $(BACKEND),.venv/.installed-$(BACKEND),$(STAMP))
KERNELS := .venv/.kernels

.PHONY: install kernels demo serve test test-fast lint bench soak clean

install: $(CHOSEN) $(KERNELS)

$(sort $(STAMP) $(CHOSEN)): pyproject.toml
	@test -n "$(PYTHON)" && $(PYTHON) $(RIGHT_PYTHON) || { echo "Innkeeper needs Python 3.11, 3.12 or 3.13: install one, or name it with PYTHON=…" >&2; exit 1; }
	$(PYTHON) scripts/install.py .venv $(BACKEND)
	@rm -f $(STAMP)-* && touch $(STAMP) $(CHOSEN)

# Compiled kernels for the CPU. Without a C++ compiler or Python's headers there are none, and everything works, more slowly.
$(KERNELS): $(CHOSEN) $(wildcard engines/gguf/kernels/cpu/src/* engines/gguf/kernels/source/*.h engines/gguf/quants/*.h)
	@$(BIN)/python -m engines.gguf.kernels.cpu.build || true
	@touch $@

# The same, but fails with the reason when it cannot be done.
kernels: $(CHOSEN)
	$(BIN)/python -m engines.gguf.kernels.cpu.build

demo: install
	$(BIN)/python scripts/demo.py

serve: install
	$(BIN)/innkeeper serve

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# In two processes, each test file in one of them, in the order of their paths: the longest, real servers, come first.
TEST := $(BIN)/pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

test: lint
	$(TEST)

# Without the tests that run real models.
test-fast: lint
	$(TEST) -m "not slow"

bench: install
	$(BIN)/python benchmarks/load.py
	$(BIN)/python benchmarks/kernels.py
	$(BIN)/python benchmarks/decode.py

# Ten minutes of traffic with clients that leave at any moment; nothing may be left behind.
soak: install
	$(BIN)/python scripts/soak.py

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build *.egg-info
