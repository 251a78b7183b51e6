# SPDX-License-Identifier: Apache-2.0
# make              sov and sov-static, in build/
# make check        every test (./check installs what is missing first)
# make check-full   the same and the long campaigns
# make windows-objects  everything outside src/platform/, compiled by mingw-w64
# make ptxcheck     every kernel on the CPU, every mutant, the calibration table (docs/ptxcheck.md)
# make cuda-bundle  build/cuda_bundle: checks of the CUDA backend, to be carried to a card
#                   (there: bash cuda_bundle/run.sh RESULTS [PART...], see tools/cuda_run.sh)
# make tsan         tests of threads under ThreadSanitizer
# make tidy         clang-tidy, cppcheck and the project's own rules
# make bench        benchmarks
# make bench-cpu    whole models against llama.cpp (bench/bench_cpu.py; BENCH_CPU="its options")
# make install      sov into $(DESTDIR)$(PREFIX)/bin
#
# The sources of src/ are built in two flavours:
#   build/free/   freestanding: no libc, no CRT. Linked into sov, sov-static and freestanding tests.
#   build/asan/   hosted twin with AddressSanitizer and UBSan. Linked into hosted tests, sov-asan.
# A file of src/ joins the build by existing; so does a program tests/test_NAME.c or sim_NAME.c.

CC := gcc
CLANG := clang
PREFIX ?= /usr/local
VERSION := 0.1.0
BUILD := build

WARN := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wundef
COMMON := -std=c17 $(WARN) -Isrc -Iinclude -I$(BUILD)/generated -march=x86-64-v3 -ffp-contract=off -fno-math-errno \
          -fno-strict-aliasing -DSOV_VERSION='"$(VERSION)"'
FREE_FLAGS := $(COMMON) -O2 -g -ffreestanding -fno-builtin -fPIE -fno-stack-protector \
              -fno-asynchronous-unwind-tables -fcf-protection=none -fvisibility=hidden
ASAN_FLAGS := $(COMMON) -O1 -g -fPIE -fno-omit-frame-pointer -fsanitize=address,undefined \
              -fno-sanitize-recover=all
# Kernels of a level above the baseline; cpu_features.h says when they may run. In 512-bit vectors,
# which clang would halve where it has the choice.
AVX512_FLAGS := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vbmi -mavx512vnni \
                -mprefer-vector-width=512
%_avx512.o %_avx512.ok: LEVEL_FLAGS := $(AVX512_FLAGS)
# Nothing of the C library is linked; libgcc is not needed either.
LINK := -nostdlib -nostartfiles -Wl,--build-id=none -Wl,-z,noexecstack -Wl,-z,relro -Wl,-z,now \
        -Wl,-z,separate-code -Wl,--gc-sections -Wl,-e,sov_main
LINK_STATIC := $(LINK) -static -no-pie
FREE_TEST_LINK := $(LINK_STATIC)
# sov: the loader maps and initialises libc, but no symbol of it is imported (docs/ARCHITECTURE.md).
LINK_DYNAMIC := $(LINK) -pie -Wl,--dynamic-linker=/lib64/ld-linux-x86-64.so.2 \
                -Wl,--no-as-needed -l:libc.so.6

FREE_ONLY := src/freestanding/mem.c $(wildcard src/platform/linux*.c)
HOSTED_ONLY := src/platform/hosted.c
CLI := $(wildcard src/cli/*.c)
CORE := $(filter-out $(FREE_ONLY) $(HOSTED_ONLY) $(CLI),$(wildcard src/*/*.c))
TESTS := $(patsubst tests/%.c,%,$(wildcard tests/test_*.c tests/sim_*.c))

FREE_CORE := $(patsubst %.c,$(BUILD)/free/%.o,$(CORE) $(FREE_ONLY))
FREE_CLI := $(patsubst %.c,$(BUILD)/free/%.o,$(CLI))
ASAN_CORE := $(patsubst %.c,$(BUILD)/asan/%.o,$(CORE) $(HOSTED_ONLY))
ASAN_CLI := $(patsubst %.c,$(BUILD)/asan/%.o,$(CLI))
FREE_TESTS := $(patsubst %,$(BUILD)/free/%,$(TESTS))
ASAN_TESTS := $(patsubst %,$(BUILD)/asan/%,$(TESTS))

# What tests open in the place of NVIDIA's driver: one of today, and one that lacks an entry point.
CUDA_STANDINS := $(BUILD)/cuda_standin/libcuda.so.1 $(BUILD)/cuda_standin/old/libcuda.so.1

# What a machine with a card runs (make cuda-bundle).
CARD_PROGRAMS := $(BUILD)/free/card_cuda $(BUILD)/free/card_model

comma := ,
.PHONY: all tests check check-full tidy bench bench-cpu install clean
.DELETE_ON_ERROR:
.SECONDARY:

all: $(BUILD)/sov $(BUILD)/sov-static

tests: all $(FREE_TESTS) $(ASAN_TESTS) $(BUILD)/sov-asan $(CARD_PROGRAMS)

$(BUILD)/sov: $(FREE_CLI) $(FREE_CORE)
	@echo '  LINK $@'
	@$(CC) -o $@ $^ $(LINK_DYNAMIC)

$(BUILD)/sov-static: $(FREE_CLI) $(FREE_CORE)
	@echo '  LINK $@'
	@$(CC) -o $@ $^ $(LINK_STATIC)

$(BUILD)/sov-asan: $(ASAN_CLI) $(ASAN_CORE)
	@echo '  LINK $@'
	@$(CC) $(ASAN_FLAGS) -pie -o $@ $^ -lpthread

# sim_engine.c stands between the engine and the platform: it defines __wrap_ of these.
$(BUILD)/free/sim_engine $(BUILD)/asan/sim_engine: TEST_LINK := \
    $(patsubst %,-Wl$(comma)--wrap=platform_%,memory_map memory_map_at thread_start)

# Opens libraries, so it is linked as sov is.
OPENS_LIBRARIES := test_cuda_driver test_cuda_engine
$(OPENS_LIBRARIES:%=$(BUILD)/free/%): FREE_TEST_LINK := $(LINK_DYNAMIC)
$(OPENS_LIBRARIES:%=$(BUILD)/free/%) $(OPENS_LIBRARIES:%=$(BUILD)/asan/%): | $(CUDA_STANDINS)

$(FREE_TESTS): $(BUILD)/free/%: $(BUILD)/free/tests/%.o $(BUILD)/free/tests/test.o $(FREE_CORE)
	@echo '  LINK $@'
	@$(CC) -o $@ $^ $(FREE_TEST_LINK) $(TEST_LINK)

$(ASAN_TESTS): $(BUILD)/asan/%: $(BUILD)/asan/tests/%.o $(BUILD)/asan/tests/test.o $(ASAN_CORE)
	@echo '  LINK $@'
	@$(CC) $(ASAN_FLAGS) $(TEST_LINK) -pie -o $@ $^ -lpthread

# The entry point must run on any x86-64, to say which CPU is needed; the memory functions must not
# be compiled into calls to themselves.
$(BUILD)/free/src/platform/linux_start.o: FREE_EXTRA := -march=x86-64
$(BUILD)/free/src/freestanding/mem.o: FREE_EXTRA := -fno-tree-loop-distribute-patterns

$(BUILD)/free/%.o: %.c Makefile
	@mkdir -p $(@D)
	@echo '  CC   $@'
	@$(CC) $(FREE_FLAGS) $(LEVEL_FLAGS) $(FREE_EXTRA) -MMD -MP -c -o $@ $<

# Where variables live in instrumented kernels takes gcc half of five minutes to find out.
$(BUILD)/asan/src/cpu/%_avx512.o: ASAN_EXTRA := -fno-var-tracking-assignments

$(BUILD)/asan/%.o: %.c Makefile
	@mkdir -p $(@D)
	@echo '  CC   $@'
	@$(CC) $(ASAN_FLAGS) $(LEVEL_FLAGS) $(ASAN_EXTRA) -MMD -MP -c -o $@ $<

# --- threads: ThreadSanitizer over the hosted twin, tests that have more than one thread ---
TSAN_TESTS := $(patsubst %,$(BUILD)/tsan/%,test_recorder test_store_threads test_pool test_scheduler)
TSAN_FLAGS := $(COMMON) -O1 -g -fPIE -fno-omit-frame-pointer -fsanitize=thread
TSAN_CORE := $(patsubst %.c,$(BUILD)/tsan/%.o,$(CORE) $(HOSTED_ONLY) tests/tsan_wait.c)

$(BUILD)/tsan/%.o: %.c Makefile
	@mkdir -p $(@D)
	@echo '  CC   $@'
	@$(CC) $(TSAN_FLAGS) $(LEVEL_FLAGS) $(TSAN_EXTRA) -MMD -MP -c -o $@ $<

# Kernels of a level take minutes to instrument; who runs what of them, the pool says.
$(BUILD)/tsan/src/cpu/%_avx512.o: TSAN_EXTRA := -fno-sanitize=thread

$(TSAN_TESTS): $(BUILD)/tsan/%: $(BUILD)/tsan/tests/%.o $(BUILD)/tsan/tests/test.o $(TSAN_CORE)
	@echo '  LINK $@'
	@$(CC) $(TSAN_FLAGS) -Wl,--wrap=platform_wait,--wrap=platform_wake_all -pie -o $@ $^ -lpthread

.PHONY: tsan
tsan: $(TSAN_TESTS)
	@python3 tools/tsan.py $(BUILD)/tsan/test_recorder $(BUILD)/tsan/test_store_threads $(BUILD)/tsan/test_pool \
	    "$(BUILD)/tsan/test_scheduler determinism"

# --- what the program says of itself in a record (src/cli/record.c) ---
DIGEST_HEADER := $(BUILD)/generated/cli/digests.h
KERNEL_SOURCES := $(sort $(wildcard src/ops/*.[ch] src/cpu/*.[ch] src/cuda/*.[ch] src/cuda/ptx/*))
BUILD_SOURCES := $(sort $(wildcard src/*/*.[ch] src/cuda/ptx/* include/*.h)) Makefile
digest_of = $$(cat $(1) | sha256sum | cut -c1-64)
$(DIGEST_HEADER): $(BUILD_SOURCES) docs/contract.md
	@mkdir -p $(@D)
	@{ echo "#define BUILD_DIGEST \"$(call digest_of,$(BUILD_SOURCES))\""; \
	   echo "#define CONTRACT_DIGEST \"$(call digest_of,docs/contract.md)\""; \
	   echo "#define KERNELS_DIGEST \"$(call digest_of,$(KERNEL_SOURCES))\""; } > $@

$(patsubst %,$(BUILD)/%/src/cli/record.o,free asan fuzz cov windows) \
    $(BUILD)/tidy/src/cli/record.ok $(BUILD)/tidy/cppcheck.ok: $(DIGEST_HEADER)

# --- kernels of the CUDA backend: PTX as C, for one file (tools/embed_ptx.py; needs python3) ---
PTX_HEADER := $(BUILD)/generated/cuda/ptx_modules.h
$(PTX_HEADER): tools/embed_ptx.py $(wildcard src/cuda/ptx/*)
	@mkdir -p $(@D)
	@echo '  PTX  $@'
	@python3 tools/embed_ptx.py $(CC) $@ $(sort $(wildcard src/cuda/ptx/*.ptx.S))

$(patsubst %,$(BUILD)/%/src/cuda/cuda_kernels.o,free asan tsan fuzz cov windows) \
    $(BUILD)/tidy/src/cuda/cuda_kernels.ok $(BUILD)/tidy/cppcheck.ok: $(PTX_HEADER)

# It executes kernels by the operators that it brings along, compiled once more for a library.
STANDIN_SOURCES := tests/cuda_standin.c tests/cuda_standin_kernels.c src/ops/reference.c src/ops/dtype.c \
                   src/freestanding/math.c $(wildcard src/cpu/*_avx2.c)
$(BUILD)/standin/%.o: %.c Makefile
	@mkdir -p $(@D)
	@echo '  CC   $@'
	@$(CC) $(COMMON) -D_GNU_SOURCE -O2 -g -fPIC -fvisibility=hidden -MMD -MP -c -o $@ $<

$(BUILD)/standin_old/%.o: %.c Makefile
	@mkdir -p $(@D)
	@$(CC) $(COMMON) -D_GNU_SOURCE -DSTANDIN_OLD -O2 -g -fPIC -fvisibility=hidden -MMD -MP -c -o $@ $<

$(BUILD)/cuda_standin/libcuda.so.1: $(STANDIN_SOURCES:%.c=$(BUILD)/standin/%.o)
$(BUILD)/cuda_standin/old/libcuda.so.1: $(BUILD)/standin_old/tests/cuda_standin.o \
    $(filter-out %/cuda_standin.o,$(STANDIN_SOURCES:%.c=$(BUILD)/standin/%.o))
$(CUDA_STANDINS):
	@mkdir -p $(@D)
	@echo '  LINK $@'
	@$(CC) -shared -Wl,-soname,libcuda.so.1 -o $@ $^ -lpthread

# For a machine with a card, which needs nothing else: bash cuda_bundle/run.sh RESULTS [PART...]
$(CARD_PROGRAMS): $(BUILD)/free/card_%: $(BUILD)/free/tests/card_%.o $(BUILD)/free/tests/test.o $(FREE_CORE)
	@echo '  LINK $@'
	@$(CC) -o $@ $^ $(LINK_DYNAMIC)

.PHONY: cuda-bundle
cuda-bundle: $(CARD_PROGRAMS) $(BUILD)/sov
	@mkdir -p $(BUILD)/cuda_bundle
	@cp $^ $(BUILD)/cuda_bundle/
	@strip $(BUILD)/cuda_bundle/*[!h]
	@cp tools/cuda_run.sh $(BUILD)/cuda_bundle/run.sh

# --- benchmarks: freestanding programs; never part of a test ---
BENCHES := $(patsubst bench/%.c,$(BUILD)/free/%,$(wildcard bench/bench_*.c))

$(BUILD)/free/bench_%: $(BUILD)/free/bench/bench_%.o $(FREE_CORE)
	@echo '  LINK $@'
	@$(CC) -o $@ $^ $(LINK_STATIC)

bench: $(BENCHES)
	@for program in $^; do $$program || exit 1; done

# Needs numpy to make its models: that of the test tools where they are installed.
BENCH_PYTHON := $(firstword $(wildcard $(BUILD)/venv/bin/python) python3)
bench-cpu: $(BUILD)/sov $(BUILD)/free/bench_bandwidth
	@$(BENCH_PYTHON) bench/bench_cpu.py $(BENCH_CPU)

# --- fuzzing: libFuzzer with ASan and UBSan over the hosted twin ---
FUZZERS := $(patsubst tests/%.c,$(BUILD)/fuzz/%,$(wildcard tests/fuzz_*.c))
FUZZ_FLAGS := $(COMMON) -O1 -g -fno-omit-frame-pointer \
              -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all
FUZZ_CORE := $(patsubst %.c,$(BUILD)/fuzz/%.o,$(CORE) $(HOSTED_ONLY) $(CLI))
FUZZ_SECONDS := 10
FUZZ_SECONDS_FULL := 600

$(BUILD)/fuzz/%.o: %.c Makefile
	@mkdir -p $(@D)
	@echo '  CC   $@'
	@$(CLANG) $(FUZZ_FLAGS) $(LEVEL_FLAGS) $(FUZZ_EXTRA) -MMD -MP -c -o $@ $<

# Kernels of a level are inlined into few functions, which takes clang minutes and 2 GB to
# instrument; the tests of kernels run it under the sanitizers of gcc.
$(BUILD)/fuzz/src/cpu/%_avx512.o: FUZZ_EXTRA := -fno-sanitize=all -Wno-pass-failed

# libFuzzer brings main; the one of hosted.c steps aside.
$(BUILD)/fuzz/src/platform/hosted.o $(BUILD)/cov/src/platform/hosted.o: \
    FUZZ_EXTRA := -Dmain=hosted_main -Wno-missing-prototypes

$(BUILD)/fuzz/fuzz_%: $(BUILD)/fuzz/tests/fuzz_%.o $(FUZZ_CORE)
	@echo '  LINK $@'
	@$(CLANG) $(FUZZ_FLAGS) -fsanitize=fuzzer $(FUZZ_LINK) -o $@ $^ -lpthread

# fuzz_cli.c stands between the commands and the platform: it defines __wrap_ of these.
WRAPPED := open close read read_some write is_terminal terminal_raw terminal_restore \
           terminal_columns memory_map thread_start thread_join cpu_count monotonic_ns random \
           interrupted forget_interrupt watch_interrupt sleep can_read is_missing make_folder \
           sync_folder rename remove remove_folder folder_names
$(BUILD)/fuzz/fuzz_cli $(BUILD)/cov/fuzz_cli: FUZZ_LINK := $(WRAPPED:%=-Wl,--wrap=platform_%)

# One planted bug per fuzzer must be found (tools/plant.py); the short form plants one only.
.PHONY: fuzz fuzz-full fuzz-plants fuzz-coverage
fuzz: $(FUZZERS)
	@python3 tools/fuzz.py $(FUZZ_SECONDS) $^
	@python3 tools/plant.py special
fuzz-full: $(FUZZERS)
	@python3 tools/fuzz.py $(FUZZ_SECONDS_FULL) $^
	@python3 tools/plant.py
fuzz-plants: $(FUZZERS)
	@python3 tools/plant.py

# Which lines of its subject each fuzzer's corpus reaches, as a table; needs Debian's llvm package
# of clang's version.
COV_FUZZERS := $(FUZZERS:$(BUILD)/fuzz/%=$(BUILD)/cov/%)
COV_FLAGS := $(COMMON) -O1 -g -fprofile-instr-generate -fcoverage-mapping
COV_CORE := $(FUZZ_CORE:$(BUILD)/fuzz/%=$(BUILD)/cov/%)

$(BUILD)/cov/%.o: %.c Makefile
	@mkdir -p $(@D)
	@echo '  CC   $@'
	@$(CLANG) $(COV_FLAGS) $(LEVEL_FLAGS) $(FUZZ_EXTRA) -MMD -MP -c -o $@ $<

$(BUILD)/cov/fuzz_%: $(BUILD)/cov/tests/fuzz_%.o $(COV_CORE)
	@echo '  LINK $@'
	@$(CLANG) $(COV_FLAGS) -fsanitize=fuzzer $(FUZZ_LINK) -o $@ $^ -lpthread

fuzz-coverage: $(COV_FUZZERS)
	@python3 tools/fuzz.py --coverage $^

# --- kernels without a GPU (docs/ptxcheck.md) ---
# The checker is hosted; it links the reference operators, which say what kernels must compute.
PTXCHECK_FLAGS := $(COMMON) -O2 -g -D_GNU_SOURCE
PTXCHECK_ASAN_FLAGS := $(PTXCHECK_FLAGS) -O1 -fsanitize=address,undefined -fno-sanitize-recover=all
PTXCHECK_SOURCES := $(filter-out %/conform_main.c,$(wildcard tools/ptxcheck/*.c)) src/ops/reference.c src/ops/dtype.c \
                    src/freestanding/math.c
PTX_MODULES := $(patsubst src/cuda/ptx/%.ptx.S,$(BUILD)/ptx/%.ptx,$(wildcard src/cuda/ptx/*.ptx.S))

$(BUILD)/ptxcheck-objects/%.o: %.c Makefile
	@mkdir -p $(@D)
	@echo '  CC   $@'
	@$(CC) $(PTXCHECK_FLAGS) $(PTXCHECK_EXTRA) -MMD -MP -c -o $@ $<

$(BUILD)/ptxcheck-asan-objects/%.o: %.c Makefile
	@mkdir -p $(@D)
	@echo '  CC   $@'
	@$(CC) $(PTXCHECK_ASAN_FLAGS) -MMD -MP -c -o $@ $<

$(BUILD)/ptxcheck: $(PTXCHECK_SOURCES:%.c=$(BUILD)/ptxcheck-objects/%.o)
	@echo '  LINK $@'
	@$(CC) -o $@ $^ -lm

$(BUILD)/ptxcheck-asan: $(PTXCHECK_SOURCES:%.c=$(BUILD)/ptxcheck-asan-objects/%.o)
	@echo '  LINK $@'
	@$(CC) $(PTXCHECK_ASAN_FLAGS) -o $@ $^ -lm

# The cases of sov conform on the interpreter: conform_main.c is the program, over platform_start.
PTXCHECK_CONFORM_SOURCES := \
    $(addprefix tools/ptxcheck/,conform_main.c decode.c exec_convert.c exec_float.c exec_integer.c \
      exec_memory.c exec_warp.c jobs.c machine.c memory.c parse.c race.c text_file.c) \
    $(wildcard src/engine/conform*.c) src/cuda/cuda_driver.c src/cuda/cuda_kernels.c \
    $(wildcard src/record/sha256*.c src/freestanding/[!m]*.c) src/freestanding/math.c \
    src/ops/reference.c src/ops/dtype.c src/platform/platform.c src/platform/hosted.c
$(BUILD)/ptxcheck-objects/src/cuda/cuda_kernels.o: $(PTX_HEADER)
$(BUILD)/ptxcheck-objects/src/platform/hosted.o: PTXCHECK_EXTRA := -U_GNU_SOURCE

$(BUILD)/ptxcheck-conform: $(PTXCHECK_CONFORM_SOURCES:%.c=$(BUILD)/ptxcheck-objects/%.o)
	@echo '  LINK $@'
	@$(CC) -o $@ $^ -lm -lpthread

# Line markers stay, so that every report names a line of the source.
$(BUILD)/ptx/%.ptx: src/cuda/ptx/%.ptx.S
	@mkdir -p $(@D)
	@$(CC) -E -x assembler-with-cpp -undef -nostdinc -MMD -MP -MT $@ -MF $(@:.ptx=.d) -o $@ $<

.PHONY: ptxcheck ptx-modules
ptx-modules: $(PTX_MODULES)
ptxcheck: $(BUILD)/ptxcheck $(BUILD)/ptxcheck-asan $(BUILD)/ptxcheck-conform $(PTX_MODULES)
	@python3 tools/ptxcheck.py

check:
	@python3 tools/check.py

check-full:
	@python3 tools/check.py --full

# --- portability: everything outside src/platform/ compiles for Windows ---
MINGW := x86_64-w64-mingw32-gcc
WINDOWS_FLAGS := $(COMMON) -O2 -ffreestanding -fno-builtin -fno-stack-protector
WINDOWS_OBJECTS := $(patsubst %.c,$(BUILD)/windows/%.o,\
                     $(filter-out src/platform/%,$(CORE)) src/freestanding/mem.c $(CLI))

$(BUILD)/windows/%.o: %.c Makefile
	@mkdir -p $(@D)
	@echo '  CC   $@'
	@$(MINGW) $(WINDOWS_FLAGS) $(LEVEL_FLAGS) -MMD -MP -c -o $@ $<

.PHONY: windows-objects
windows-objects: $(WINDOWS_OBJECTS)

# --- linters ---
TIDY_SOURCES := $(CORE) $(FREE_ONLY) $(CLI) $(HOSTED_ONLY)
TIDY_STAMPS := $(patsubst %.c,$(BUILD)/tidy/%.ok,$(TIDY_SOURCES))

$(BUILD)/tidy/%.ok: %.c .clang-tidy $(wildcard src/*/*.h)
	@mkdir -p $(@D)
	@clang-tidy --quiet $< -- $(COMMON) $(LEVEL_FLAGS) -ffreestanding > $@.log 2>&1 || { cat $@.log; exit 1; }
	@touch $@

$(BUILD)/tidy/cppcheck.ok: $(TIDY_SOURCES) $(wildcard src/*/*.h)
	@mkdir -p $(@D)
	@cppcheck --quiet --std=c11 --enable=warning,portability --inline-suppr --error-exitcode=1 \
	    --suppressions-list=tools/cppcheck.txt -Isrc -Iinclude -I$(BUILD)/generated -D__BYTE_ORDER__=1234 \
	    -D__ORDER_LITTLE_ENDIAN__=1234 -DSOV_VERSION='""' $(TIDY_SOURCES)
	@touch $@

TIDY_TOOLS := $(patsubst %.c,$(BUILD)/tidy/%.ok,$(wildcard tools/ptxcheck/*.c))
$(TIDY_TOOLS): $(BUILD)/tidy/%.ok: %.c .clang-tidy $(wildcard tools/ptxcheck/*.h)
	@mkdir -p $(@D)
	@clang-tidy --quiet $< -- $(PTXCHECK_FLAGS) > $@.log 2>&1 || { cat $@.log; exit 1; }
	@touch $@

# cppcheck 2.10 does not take the keyword _Noreturn for what it says; the attribute it does.
$(BUILD)/tidy/cppcheck-tools.ok: $(wildcard tools/ptxcheck/*.[ch])
	@mkdir -p $(@D)
	@cppcheck --quiet --std=c11 --enable=warning,portability --inline-suppr --error-exitcode=1 \
	    --suppressions-list=tools/cppcheck.txt -Isrc -Iinclude -D__BYTE_ORDER__=1234 \
	    -D__ORDER_LITTLE_ENDIAN__=1234 '-D_Noreturn=__attribute__((noreturn))' \
	    $(wildcard tools/ptxcheck/*.c)
	@touch $@

tidy: $(TIDY_STAMPS) $(TIDY_TOOLS) $(BUILD)/tidy/cppcheck.ok $(BUILD)/tidy/cppcheck-tools.ok
	@python3 tools/tidy.py

install: $(BUILD)/sov
	install -D -m 0755 $(BUILD)/sov $(DESTDIR)$(PREFIX)/bin/sov

clean:
	rm -rf $(BUILD)

-include $(shell test -d $(BUILD) && find $(BUILD) -name '*.d')
