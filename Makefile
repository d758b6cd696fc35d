# Everything a person needs, from an empty clone: `make demo`, `make test`. The work is done by small scripts in tools/.
# Only make, a shell and Python >= 3.11 are assumed; PYTHON=/path/to/python chooses one.
.DEFAULT_GOAL := help
.PHONY: help demo test lowest chart simulate chaos soak bench-peers fuzz sanitize lint format proto clean
BIN := .venv/bin

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-11s %s\n", $$1, $$2}' Makefile

demo: ## Run a store, coordinators, workers and trainers on this machine, break them, and show that nothing is lost
	@tools/setup.sh demo
	@$(BIN)/headrace demo $(ARGS)

test: ## Check the code and run all tests (about a quarter of an hour on two cores)
	@tools/setup.sh test,lint,chart
	@tools/redis.sh
	@tools/helm.sh
	@tools/prometheus.sh
	@tools/chromium.sh
	@tools/lint.sh
	@tools/test.sh $(ARGS)
	@$(if $(ARGS),,tools/lowest.sh)

lowest: ## Run some tests with the oldest version of each library that pyproject.toml admits, in .venv-lowest
	@tools/setup.sh test,lint,chart
	@tools/lowest.sh $(ARGS)

simulate: ## Run SEEDS=1000 simulated fleets under faults and check every promise; SEED= plays one again
	@tools/setup.sh test
	@$(BIN)/python -m headrace.testing.simulation --seeds $(or $(SEEDS),1000) $(if $(SEED),--seed $(SEED)) $(ARGS)

chaos: ## Break a fleet of real processes at random for MINUTES=5, and audit each round; SEED= chooses the faults again
	@tools/setup.sh test
	@$(BIN)/python -m headrace.testing.chaos --minutes $(or $(MINUTES),5) $(if $(SEED),--seed $(SEED)) $(ARGS)

soak: ## Train small epochs under faults for MINUTES=30 and see whether anything grows; report and picture in soak-out
	@tools/setup.sh soak
	@$(BIN)/python -m headrace.testing.soak --minutes $(or $(MINUTES),30) $(if $(SEED),--seed $(SEED)) $(ARGS)

bench-peers: ## Measure Headrace against other loaders on the same photos, each in an environment of its own (several GB, once)
	@tools/setup.sh soak
	@$(BIN)/python -m loadtest.peers $(ARGS)

fuzz: ## Feed hostile bytes to everything that parses, for MINUTES=5; SEED= repeats a run
	@tools/setup.sh test
	@$(BIN)/python -m headrace.testing.fuzz --minutes $(or $(MINUTES),5) $(if $(SEED),--seed $(SEED)) $(ARGS)

chart: ## Render the Helm chart with Helm 3 and 4, and check all that it makes
	@tools/setup.sh test,lint,chart
	@tools/helm.sh
	@tools/prometheus.sh
	@tools/test.sh -q tests/chart $(ARGS)

lint: ## Check style, types, the direction of imports, and the protocol files
	@tools/setup.sh test,lint
	@tools/lint.sh

format: ## Rewrite the code in the house style
	@tools/setup.sh test,lint
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

proto: ## Generate the protocol's Python code again from proto/
	@tools/setup.sh test,lint
	@$(BIN)/python -m headrace.wire.generate

sanitize: ## Build the native core with ASan and UBSan and feed it damaged images (ARGS="SECONDS SEED", a minute if not given)
	@tools/setup.sh test,lint
	@tools/sanitize.sh $(ARGS)

clean: ## Remove what the other targets made: .venv, caches, the demo's output
	@rm -f services/headrace/worker/engines/*.so.*
	@rm -rf .venv .venv-lowest .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache demo-out soak-out dist build
	@find services tests -name __pycache__ -type d -prune -exec rm -rf {} +
