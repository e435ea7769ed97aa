# Colibri. `make run` and `make test` are all a newcomer needs; each installs what it lacks.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

ifeq ($(shell uname -s),Darwin)
WINDOW_TAGS := desktop,production
DEV_TAGS := dev
else
WINDOW_TAGS := desktop,production,webkit2_41
DEV_TAGS := dev,webkit2_41
endif

.PHONY: help run test cli window window-dev colibri-sim frontend app dmg bench bench-check compare plan-check soak fuzz clean

help: ## lists these targets
	@awk -F':.*## ' '/^[a-z][a-z-]*:.*## /{printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: setup-run window ## builds what is missing and opens the window with the bundled model ready
	./build/bin/colibri-app

cli: ## the command line alone, build/bin/colibri: needs Go and a C compiler, nothing else
	go build -trimpath -o build/bin/colibri ./cmd/colibri

window: frontend ## the window, build/bin/colibri-app
	go build -trimpath -tags $(WINDOW_TAGS) -o build/bin/colibri-app .

window-dev: frontend ## the window as the browser tests drive it, build/bin/colibri-app-dev
	go build -tags $(DEV_TAGS) -o build/bin/colibri-app-dev .

colibri-sim: ## the command line with the Metal backend in the simulator (Linux), build/bin/colibri-sim
	$(MAKE) -s -C backend/metal/simulator
	CC=$(CURDIR)/backend/metal/simulator/cc go build -tags metalsim -o build/bin/colibri-sim ./cmd/colibri

frontend: frontend/dist/index.html

frontend/node_modules/.installed: frontend/package.json frontend/package-lock.json
	cd frontend && npm ci --no-audit --no-fund --loglevel=error
	touch $@

frontend/dist/index.html: frontend/node_modules/.installed $(shell find frontend/src frontend/public -type f 2>/dev/null) frontend/index.html frontend/vite.config.ts
	cd frontend && npm run --silent build

.PHONY: setup-%
setup-%:
	@scripts/setup.sh $*

test: setup-test ## every test of every layer
	scripts/test.sh

app: setup-run frontend ## Colibri.app (on a Mac); see build/darwin/package.sh for signing
	build/darwin/package.sh app

dmg: app ## Colibri.dmg (on a Mac)
	build/darwin/package.sh dmg

bench: cli ## what this machine does: kernels, prefill, decode, drafts, start-up
	build/bin/colibri bench

bench-check: cli ## half a minute of it as the suite runs it: figures to test-results/bench.json, fails only on other tokens
	@mkdir -p test-results
	build/bin/colibri bench --json --rounds 2 --expect testdata/bench-tokens.json >test-results/bench.json

compare: ## two revisions in one run: make compare A=HEAD~1 B=HEAD; see scripts/compare for settings
	go run ./scripts/compare $(A) $(B)

plan-check: cli ## predictions of colibri plan beside runs: make plan-check MODELS="DIR DIR"; see scripts/plancheck for streaming
	go run ./scripts/plancheck $(MODELS)

soak: $(if $(filter Linux,$(shell uname -s)),window-dev) ## the long forms of tests that the suite runs shortened
	COLIBRI_SOAK=1 go test -timeout 2h ./backend/app ./backend/chat/store ./backend/residency ./backend/engine
ifeq ($(shell uname -s),Linux)
	cd e2e && npm ci --silent --no-audit --no-fund && COLIBRI_SOAK=1 node --test memory.test.mjs
endif

FUZZ_TIME ?= 60s
fuzz: ## every fuzz target for FUZZ_TIME each
	scripts/fuzz.sh $(FUZZ_TIME)

clean: ## removes what was built
	rm -rf build/bin build/cache frontend/dist/* frontend/node_modules
