# `make demo` and `make test` need Python 3.11 or newer and make; everything else is set up in .venv.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TRITON := "triton==3.6.0; sys_platform == 'linux'"
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help setup demo test laws test-capped clients browser ray check format gpu memcheck bench docs audit sbom release

help:
	@echo "make demo | test | laws | test-capped | clients | browser | ray | check | format | bench | docs | gpu | memcheck | audit | sbom | release | setup"

setup: $(STAMP)

$(STAMP): pyproject.toml benchmarks/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("eyas needs Python 3.11 or newer") if sys.version_info < (3, 11) else None'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (once)"
	$(PIP) torch
	$(BIN)/python -c 'import triton' 2> /dev/null || $(PIP) $(TRITON) # torch for CUDA brings its own
	$(PIP) -e '.[dev]' -e benchmarks
	@touch $@

demo: $(STAMP)
	$(BIN)/eyas demo

# Modules are kept compiled, for the many processes that tests start.
test laws test-capped: export PYTHONDONTWRITEBYTECODE =

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not gpu"

# All combinations of the laws' conditions and many more drawn cases, beside what `make test` runs of them.
laws: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not gpu" --thorough \
		$(addprefix tests/,laws attention cache constraint dialect draft engine kernels layers parallel \
			models/test_model_law.py sampling schemas text typing verify cli/test_train_head.py \
			$(addprefix server/test_,answer_stream_law.py large_bodies.py live_structured.py \
			messages.py responses.py stream_granularity.py))

# As on a processor without AVX-512 and bfloat16: all rooms that compute, and what of the engine depends
# on how they do; or CAPPED=tests for everything. A processor that has neither ran them so in `make test`.
CAPPED := $(addprefix tests/,attention draft layers models sampling verify \
	laws/test_batch_law.py laws/test_drafter_law.py \
	$(addprefix engine/test_,build.py draft_trees.py exactness.py fp8_cache.py latent_engine.py states.py \
	verifier.py window_slots.py))
CAPABILITY := import torch; print(torch.backends.cpu.get_cpu_capability())
test-capped: $(STAMP)
	@if [ "$$($(BIN)/python -c '$(CAPABILITY)')" != AVX512 ]; then \
		echo "test-capped: this processor has no AVX-512; make test is the same, so nothing is run again"; \
		exit 0; \
	fi; \
	set -x; ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 OMP_NUM_THREADS=1 \
		$(BIN)/python -m pytest -n 2 --dist worksteal -m "not gpu and not slow" $(CAPPED)

# Other projects' clients against a live server, each in an environment of its own; or CLIENTS="openai ...".
clients: $(STAMP)
	$(BIN)/python tools/run_clients.py $(CLIENTS)

# The web page in headless Chromium, which must be installed with its driver; or BROWSER=--screenshots.
browser: $(STAMP)
	$(BIN)/python tools/run_browser.py $(BROWSER)

# The Ray Serve application on a local cluster. Ray's environment sees the packages of $(VENV).
RAY := .venv-ray
$(RAY)/.installed: tests/ray/lock.txt $(STAMP)
	$(BIN)/python -m venv --clear $(RAY)
	$(RAY)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r tests/ray/lock.txt
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		> $$($(RAY)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/eyas.pth
	echo $(CURDIR)/src >> $$($(RAY)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/eyas.pth
	@touch $@

ray: export RAY_AUTH_MODE = disabled
ray: export RAY_USAGE_STATS_ENABLED = 0
ray: export RAY_agent_register_timeout_ms = 180000
ray: export RAY_raylet_start_wait_time_s = 240
ray: $(RAY)/.installed
	$(RAY)/bin/python -m pytest tests/ray -W default -p no:cacheprovider

check: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyrefly check
	$(BIN)/lint-imports
	$(BIN)/python tools/lint_safety.py src tests tools examples benchmarks
	$(BIN)/python tools/lint_cycles.py eyas eyas_bench builtin_model
	$(BIN)/python tools/make_docs.py --check

format: $(STAMP)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

gpu: $(STAMP)
	$(BIN)/python -m pytest -m "gpu and not slow"

# Every tensor's memory is the driver's own, so that the tool sees an access beyond it; nothing can be
# captured then.
memcheck: $(STAMP)
	PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck --target-processes all \
		--error-exitcode 9 $(BIN)/python -m pytest -m "gpu and not slow" \
		-k "not graph and not captur and not measured" tests/kernels \
		tests/gpu/test_attention_kernels.py tests/gpu/test_sampling_kernels.py

bench: $(STAMP)
	$(BIN)/python benchmarks/run.py

docs: $(STAMP)
	$(BIN)/python tools/make_docs.py

# Tools of a release, in an environment of their own; the files they write go to dist/.
RELEASE := .venv-release
PINS := dist/requirements.txt
$(RELEASE)/.installed:
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python -m pip install --quiet --disable-pip-version-check build cyclonedx-bom pip-audit uv
	@touch $@

# The versions of constraints.txt with the hashes of all their files: pip install --require-hashes takes it.
$(PINS): constraints.txt $(RELEASE)/.installed
	@mkdir -p dist
	$(RELEASE)/bin/uv pip compile --quiet --no-deps --no-header --no-annotate --generate-hashes \
		constraints.txt -o $@

# --strict: a version that cannot be looked up is a failure, not a pass.
audit: $(PINS)
	$(RELEASE)/bin/pip-audit --strict --disable-pip --require-hashes -r $(PINS)

sbom: $(PINS)
	$(RELEASE)/bin/cyclonedx-py requirements $(PINS) --pyproject pyproject.toml -o dist/eyas-sbom.json

release: sbom
	$(RELEASE)/bin/python -m build --outdir dist
	cd dist && sha256sum *.whl *.tar.gz *.json requirements.txt > SHA256SUMS
