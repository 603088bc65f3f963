# Everything a person needs to run, check and measure Plimsoll. `make help` lists it.
# What people try is built quickly (profile `quick`), what is measured is a release build, tests share one development build.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help run demo test check crash chaos attack stall harmless endless soak scale window turns presets seeds bench fuzz mutants image agents deny clean-tools

N ?= 200
FROM ?= 0
REPLICAS ?= 1
SECONDS_EACH ?= 60
MINUTES ?= 60
ARGS ?=

help: ## This list
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 14

run: ## The proxy on 127.0.0.1:8787 with your configuration, or the built-in one (ARGS="--listen …")
	cargo run --locked --profile quick -- serve $(ARGS)

demo: ## An agent session against a scripted provider, turn by turn; no key, no network
	cargo run --locked --profile quick -- demo $(ARGS)

test: ## Every tier of tests; sets up its own tools in .tools/
	@scripts/test

check: ## The quick part of the tests: format, lints, all Rust tests but the faults
	@scripts/test format lints rust

seeds: ## The reference documents, requirement by requirement (tests/seeds.md)
	@scripts/seeds

crash: ## kill -9 under load, N=200 rounds
	PLIMSOLL_CRASH_ROUNDS=$(N) cargo test --locked --test crash -- --nocapture

chaos: MINUTES = 10
chaos: ## Random faults around the program for MINUTES=10: upstreams that break, kill -9, a locked store, and a full disk if run as root
	tests/faults/run $(MINUTES)

attack: ## The attacks of docs/threats.md: over real sockets, and as a second user if run as root
	cargo test --locked --test attack

stall: ## Each dependency hangs in turn, under N=200 streams (docs/waits.md)
	PLIMSOLL_STALL=$(N) cargo test --locked --test stall

harmless: ## N random conversations from seed FROM=0 on, and as many under presets, rewritten, against a provider that checks what real ones check; REPLICAS=4: each request at another replica, on a real Redis; POISON=1: with blocks that it refuses
ifdef POISON
	PLIMSOLL_HARMLESS_FROM=$(FROM) PLIMSOLL_POISON=$(N) cargo test --locked --release --test harmless refused_session_continues -- --nocapture
else
	PLIMSOLL_HARMLESS_FROM=$(FROM) PLIMSOLL_HARMLESS_REPLICAS=$(REPLICAS) PLIMSOLL_HARMLESS=$(N) $(if $(filter-out 1,$(REPLICAS)),scripts/with-redis )cargo test --locked --release --test harmless -- --nocapture
endif

endless: ## N=20 sessions of 500 turns through a window of 30,000 tokens
	PLIMSOLL_ENDLESS=$(N) cargo test --locked --release --test harmless sessions_continue -- --nocapture

soak: ## Agents' sessions for MINUTES=60 with a small limit, as in the image if run as root; a verdict for each line
	tests/confined/run soak $(MINUTES)

scale: N = 5000000
scale: ## A store with N=5000000 turns: how soon it is ready, and how long each query takes
	PLIMSOLL_SCALE_TURNS=$(N) cargo test --locked --release --test soak many_turns -- --nocapture

window: ## A chat of 60 turns with a real model through its window of 1,024 tokens (minutes)
	@scripts/test tools binary window

turns: ## 200 turns with a real model that Plimsoll does not know: how wrong the estimates are (minutes)
	@scripts/test tools binary turns

presets: ## What each preset would save and cost on the recorded sessions, compared with its file (minutes)
	PLIMSOLL_PRESETS=1 cargo test --locked --release --test preset_costs

bench: ## Performance compared with a bare reverse proxy, by stage and per event
	benches/run $(ARGS)

fuzz: ## Each fuzz function for SECONDS_EACH=60
	scripts/fuzz $(SECONDS_EACH)

mutants: ## Mutation testing of the code that decides, a shard at a time (SHARD=k/n; all of it takes many hours): scripts/mutation/README.md has the score
	scripts/mutants $(SHARD)

image: ## The container image, built and run here (ARGS=--from-source: in the image, as docker build does)
	scripts/image $(ARGS)

agents: ## Codex, Gemini CLI, opencode, aider and mini-swe-agent through the proxy, also with content that providers refuse; PLIMSOLL_CLAUDE_CODE=1: Claude Code, too; ARGS=launch: these and four others under `plimsoll run`; ARGS=pays: what rewriting costs and saves with these and nine others; ARGS="pays cliff": what CliffCompaction does; ARGS=--newest: what their newest releases do otherwise
	@scripts/agents $(ARGS)

deny: ## cargo-deny: licences, bans, sources, duplicates, and advisories if their database is here
	@scripts/deny

clean-tools: ## Delete the tools that tests set up
	rm -rf .tools tests/sdk/node/node_modules tests/page/node_modules tests/deploy/workflows/node_modules
