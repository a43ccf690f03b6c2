# `make demo` and `make test` do their whole set-up: a virtual environment in .venv, torch, the
# package and the models they need. A second run reuses what is there.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
TOOLS := $(VENV)/.ready-tools
INSTALL = $(PY) -m pip install -q --no-compile -c constraints.txt -e
DEMO_OUT ?= out/demo
# Test processes; each loads the models it needs, about 2 GB at most.
JOBS ?= 2
DEMO_CONTEXT ?= 1024
DEMO_RECIPES ?= fp32 fp16 int8 int4 int8/int4 window:256 sinks:4+window:252

NEEDS = needs Python 3.11 or newer with venv: apt-get install python3 python3-venv g++ make
EVERYTHING = run,hf,lmeval,ray,test,dev
SLOW = kvik: no C++ compiler, so without the native library and slower: apt-get install g++
NATIVE = CMakeLists.txt $(wildcard csrc/*.cpp csrc/*/*.cpp csrc/*/*.h csrc/*/*.inc)

.PHONY: demo test lint soak native-test clean
.DELETE_ON_ERROR:

# A tree that was moved, or whose Python went away, is set up again.
ifneq ($(shell $(PY) -c 'print(open("$(READY)").read().strip())' 2>/dev/null),$(CURDIR))
$(shell rm -f $(READY) $(TOOLS))
endif

demo: $(READY)
	$(PY) -m kvik models get smollm2-135m
	$(PY) -m kvik compare smollm2-135m $(foreach r,$(DEMO_RECIPES),--kv $(r)) \
		--context $(DEMO_CONTEXT) --out $(DEMO_OUT)

test: lint
	$(PY) -m kvik models get smollm2-135m gemma3-270m
	$(PY) -m pytest -m "not soak" -n $(JOBS)

lint: $(TOOLS)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports

soak: $(TOOLS)
	$(PY) -m kvik models get smollm2-135m gemma3-270m
	$(PY) -m pytest -m soak

# The C++ tests under AddressSanitizer and UBSan, for every instruction set of this machine.
native-test: $(TOOLS)
	$(VENV)/bin/cmake -S . -B build/native-test -G Ninja -DKVIK_TESTS=ON -DKVIK_SANITIZE=ON \
		-DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(VENV)/bin/ninja
	$(VENV)/bin/cmake --build build/native-test
	$(VENV)/bin/ctest --test-dir build/native-test --output-on-failure

# The stamp is written last and taken away first: an interrupted set-up starts over.
define set_up
@command -v $(PYTHON) >/dev/null && \
 $(PYTHON) -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
 { echo "kvik $(NEEDS)" >&2; exit 1; }
@command -v c++ >/dev/null || echo "$(SLOW)" >&2
@[ -e $(READY) ] || rm -rf $(VENV)
@rm -f $(READY) $(TOOLS)
[ -x $(PY) ] || $(PYTHON) -m venv $(VENV)
$(INSTALL) '.[$(1)]'
@echo "$(CURDIR)" > $(READY)
endef

$(READY): pyproject.toml constraints.txt $(NATIVE)
	$(call set_up,run)

$(TOOLS): pyproject.toml constraints.txt $(NATIVE)
	$(call set_up,$(EVERYTHING))
	@touch $@

clean:
	rm -rf $(VENV) out build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
