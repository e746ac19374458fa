# The one list of commands. On a fresh Debian machine with Python 3.11: `make demo`, `make test`.
VENV ?= .venv
PYTHON ?= python3
BIN = $(VENV)/bin
QUICK = tests/unit tests/contract tests/house tests/faults
# Real servers, processes and clocks on a busy machine: a test that fails is run once more, and the summary names it
# (RERUN). One that shows up there twice has a race: find it.
PYTEST = $(BIN)/python -m pytest -q --reruns 1 --rerun-show-tracebacks -rsxXfE

# `make test-of PATH=...` names what changed. The shell's own PATH, where programs are, is still the one make was started with.
ifeq ($(origin PATH),command line)
CHANGED := $(PATH)
override PATH := $(shell /usr/bin/tr '\0' '\n' </proc/$$PPID/environ | /usr/bin/sed -n 's/^PATH=//p')
endif

.PHONY: demo test test-deep test-of test-frameworks quick check ruff types contracts audit bench docs clean debian identity-provider

demo: $(VENV)/.installed
	@scripts/debian tmux
	@$(BIN)/python examples/demo.py

# Lint, types, contracts, then all tests; the quick ones first. The others wait for servers half of the time: three side by side.
test: $(VENV)/.installed debian
	@$(MAKE) --no-print-directory -j 2 --output-sync=target types ruff contracts identity-provider
	$(PYTEST) -n 2 -m "not slow and not deep" $(QUICK)
	$(PYTEST) -n 2 -m "slow and not deep" $(QUICK)
	$(PYTEST) -n 3 --dist loadfile --no-loadscope-reorder -m "not deep" tests/integration tests/security tests/e2e

# The long form of the suites: thousands of fuzzed requests, attacks and idle connections, and all combinations of what
# `test` tries some of (tests/combinations.py). Not part of `test`: minutes each.
test-deep: $(VENV)/.installed debian
	$(PYTEST) -n 2 --dist loadfile -m deep --timeout=900 $(QUICK) tests/integration tests/security tests/e2e

# The tests that a change touches: make test-of PATH="src/trainyard/lib/units.py", or several files and folders.
test-of: $(VENV)/.installed debian
	@tests=$$($(BIN)/python scripts/tests-of $(CHANGED)) && set -x && $(PYTEST) -n 2 --dist loadfile -m "not deep" $$tests

# Real PyTorch, Horovod, MindSpore and TensorFlow on nodes of the platform. Not part of `test`: they are five gigabytes.
test-frameworks: $(VENV)/.installed debian
	@scripts/debian cmake g++ libopenmpi-dev
	@scripts/frameworks .venv-frameworks $(PYTHON)
	$(BIN)/python -m pytest -q --timeout=1200 tests/frameworks

# The part to run at every save: under two minutes.
quick: $(VENV)/.installed debian
	@$(MAKE) --no-print-directory check
	$(PYTEST) -n 2 -m "not slow and not deep" $(QUICK)

check: $(VENV)/.installed
	@$(MAKE) --no-print-directory -j 2 --output-sync=target types ruff contracts

ruff: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed
	$(BIN)/python -m mypy

contracts: $(VENV)/.installed
	$(BIN)/lint-imports --no-cache

# A program of others that tests of signing in need; made once for all checkouts.
identity-provider: $(VENV)/.installed
	@scripts/identity-provider $(abspath $(BIN))/python >/dev/null

# Advisories on the pinned versions. Not part of `test`: it asks the package index.
audit:
	@scripts/audit $(PYTHON)

bench: $(VENV)/.installed debian
	$(BIN)/python -m benchmarks

docs: $(VENV)/.installed
	$(BIN)/pip install -q -c constraints.txt -e '.[docs]'
	$(BIN)/python scripts/reference
	$(BIN)/zensical build --strict

debian:
	@scripts/debian tmux openssh-server openssh-client rsync postgresql openmpi-bin busybox iproute2 procps git valgrind bubblewrap podman runc prometheus gcc docker.io user-mode-linux kmod nfs-kernel-server

$(VENV)/.installed: pyproject.toml constraints.txt
	@scripts/debian $(PYTHON)-venv
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev,server,oidc]'
	@touch $@

clean:
	rm -rf $(VENV) .venv-frameworks build dist site .mypy_cache .ruff_cache .pytest_cache
