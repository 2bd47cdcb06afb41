# Snapify: build, demonstrate, test, measure, install.
#
#   make demo     checkpoint, kill and restart an OpenMP offload program (the main job)
#   make test     all tests
#   make bench    figures against this machine's limits and against peers
#   make fuzz     every parser for a minute (FUZZ_SECONDS), fed with what nobody would write
#   make soak     the long version of the random kill-and-restart rounds
#   make install  into PREFIX (default /usr/local)

PREFIX ?= /usr/local
# What is built for running lies here as it would below PREFIX.
STAGE := $(CURDIR)/build
CARGO ?= cargo
TARGET_DIR := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)

.PHONY: all build stage examples demo test bench soak fuzz lint install clean

all: stage

build:
	@scripts/setup build
	$(CARGO) build --release --locked --workspace

stage: build
	@scripts/stage "$(TARGET_DIR)/release" "$(STAGE)"

examples: stage
	@scripts/setup build
	@$(MAKE) --no-print-directory -C examples BUILD="$(STAGE)/examples"

demo: stage examples
	@scripts/demo "$(STAGE)"

test: stage examples
	@scripts/setup test
	@# Unit tests go one by one: some spawn a program, whose process holds copies of all descriptors
	@# of the others until it executes, and a pipe or connection that they close would stay open.
	$(CARGO) test --release --locked --workspace --lib --bins -- --test-threads=1
	$(CARGO) test --release --locked --workspace --doc
	@# The example of the engine is what the engine's tests run.
	$(CARGO) build --release --locked --workspace --examples
	SNAPIFY_STAGE="$(STAGE)" $(CARGO) test --release --locked --workspace --test '*'

soak: stage examples
	@scripts/setup test
	SNAPIFY_STAGE="$(STAGE)" SNAPIFY_ROUNDS=20 $(CARGO) test --release --locked -p snapify-tests -- --ignored --nocapture soak
	@# Real programs: ten rounds of each.
	SNAPIFY_STAGE="$(STAGE)" SNAPIFY_ROUNDS=10 $(CARGO) test --release --locked -p snapify-tests -- process_trees plain_programs multiplexer

fuzz: stage examples
	@scripts/setup test
	scripts/fuzz "$(STAGE)" "$(STAGE)-fuzz"

bench: stage examples
	@SNAPIFY_STAGE="$(STAGE)" "$(TARGET_DIR)/release/snapify-bench"

lint:
	$(CARGO) fmt --all --check
	$(CARGO) fmt --check --manifest-path fuzz/Cargo.toml
	$(CARGO) clippy --release --locked --workspace --all-targets -- -D warnings

install: stage
	@scripts/stage "$(TARGET_DIR)/release" "$(DESTDIR)$(PREFIX)" "$(PREFIX)"

clean:
	rm -rf "$(STAGE)" "$(STAGE)-fuzz" "$(TARGET_DIR)"
