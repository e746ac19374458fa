# The one list of commands. On a fresh Debian machine with Python 3.11: `make demo`, `make test`.
VENV ?= .venv
PYTHON ?= python3
BIN = $(VENV)/bin
QUICK = tests/unit tests/contract tests/house tests/faults
# Real servers, processes and clocks on a busy machine: a test that fails is run once more, and the summary names it
# (RERUN). One that shows up there twice has a race: find it.
PYTEST = $(BIN)/python -m pytest -q --reruns 1 --rerun-show-tracebacks -rsxXfE

.PHONY: demo test test-deep test-frameworks quick check audit bench docs clean debian

demo: $(VENV)/.installed
	@scripts/debian tmux
	@$(BIN)/python examples/demo.py

# Lint, types, contracts, then all tests; the quick ones first. The others wait for servers half of the time: three side by side.
test: $(VENV)/.installed debian
	@$(MAKE) --no-print-directory check
	@scripts/identity-provider $(abspath $(BIN))/python >/dev/null
	$(PYTEST) -n 2 -m "not slow" $(QUICK)
	$(PYTEST) -n 2 -m slow $(QUICK)
	$(PYTEST) -n 3 --dist loadfile --no-loadscope-reorder -m "not deep" tests/integration tests/security tests/e2e

# The long form of the suites: thousands of fuzzed requests, attacks and idle connections. Not part of `test`: minutes each.
test-deep: $(VENV)/.installed debian
	$(PYTEST) -n 2 --dist loadfile -m deep --timeout=900 tests/integration tests/security

# Real PyTorch, Horovod, MindSpore and TensorFlow on nodes of the platform. Not part of `test`: they are five gigabytes.
test-frameworks: $(VENV)/.installed debian
	@scripts/debian cmake g++ libopenmpi-dev
	@scripts/frameworks .venv-frameworks $(PYTHON)
	$(BIN)/python -m pytest -q --timeout=1200 tests/frameworks

# The part to run at every save: under two minutes.
quick: $(VENV)/.installed debian
	@$(MAKE) --no-print-directory check
	$(PYTEST) -n 2 -m "not slow" $(QUICK)

check: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/lint-imports --no-cache

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
