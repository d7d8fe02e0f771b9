# The commands of Hone. `make run` and `make test` are all a newcomer needs.
.PHONY: help run demo test setup lint unit clients bench openapi starter goldens clean

CARGO ?= cargo
HONE := target/release/hone
VENV := target/venv

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

run: ## build and start Hone on http://127.0.0.1:8080 with the built-in model
	$(CARGO) build --release --locked -p hone
	$(HONE) serve

demo: ## watch simulated users teach the model over plain HTTP (about five minutes)
	$(CARGO) build --release --locked -p hone
	$(HONE) demo

test: setup lint unit clients ## set up what the tests need, then run everything

setup: ## install what the tests need (a C compiler; Python and Node clients)
	@sh tests/setup.sh

lint: ## formatting and lints
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

unit: ## all Rust tests
	$(CARGO) test --workspace --locked

clients: setup ## real clients from PyPI and npm against the real server
	$(CARGO) build --locked -p hone
	HONE=target/debug/hone $(VENV)/bin/python tests/clients/run.py

bench: ## every measurement, as tables
	$(CARGO) build --release --locked -p hone
	$(HONE) bench all

openapi: ## write docs/openapi.json, from which the page's types are made
	@mkdir -p target
	$(CARGO) run --quiet --locked -p hone -- openapi > target/openapi.json
	mv target/openapi.json docs/openapi.json

starter: ## train the built-in model again from its seed (about fifteen minutes)
	$(CARGO) build --release --locked -p hone
	$(HONE) starter train --out target/starter
	$(HONE) starter eval --model target/starter

goldens: ## make the reference files again with PyTorch, transformers and PEFT (large downloads)
	python3 -m venv target/venv-goldens
	target/venv-goldens/bin/pip install --quiet torch transformers peft safetensors numpy
	target/venv-goldens/bin/python tests/goldens/make_goldens.py

clean:
	$(CARGO) clean
