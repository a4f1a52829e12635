# The one door to this repository: `make` alone lists what it does.

PYTHON ?= python3
VENV   ?= .venv

bin := $(VENV)/bin
pip := $(bin)/python -m pip --disable-pip-version-check --quiet --quiet

# Most modules of what is installed are never imported: Python compiles the others when they are.
install := $(pip) install --no-compile

# Tests start hundreds of processes: each would compile the package again if its bytecode could not be kept.
export PYTHONDONTWRITEBYTECODE :=

# Stamps, so that a second run installs nothing; a change of pyproject.toml installs again.
venv    := $(VENV)/.made
package := $(VENV)/.installed
testing := $(VENV)/.installed-test
tools   := $(VENV)/.installed-dev
peers   := $(VENV)/.installed-bench
site    := $(VENV)/.installed-site

# What `make check` does side by side, and what `make test` adds to it.
checks   := types layers
compiled := build/cache/.compiled

.DEFAULT_GOAL := help
.PHONY: help run tour test test-quick test-long check types layers format sim soak-spark bench c docs clean

# Far more workers than cores: a good part of the tests waits, for processes that start or for what must not come.
pytest := $(bin)/python -m pytest --numprocesses 7

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

run: $(package) ## Serve a broker on ./data, and say what to try (DATA=elsewhere PORT=7071)
	@$(bin)/wherry serve --data $(or $(DATA),data) $(if $(PORT),--port $(PORT))

tour: $(package) ## A short tour of the queue, in process
	@$(bin)/wherry tour

test: checks += $(compiled)
test: check ## Everything a change must pass: check, then the tests (ONLY=unit: one folder of them)
	$(pytest) -m 'not long' $(if $(ONLY),tests/$(ONLY))

test-quick: $(testing) ## The inner loop, within a minute: unit, behaviour, properties, twenty seeds of the simulator
	$(bin)/python -m pytest --numprocesses 3 -m 'not long and not more' --hypothesis-profile quick \
		tests/unit tests/behaviour tests/property tests/golden tests/sim/test_fresh_seeds.py

test-long: $(tools) ## What takes hours: tests in their long form, properties tenfold, a thousand seeds, the soak of Spark
	$(pytest) -m long
	$(pytest) --hypothesis-profile long tests/property
	$(bin)/python -m wherry.sim --seeds 1000
	$(bin)/python -m tests.spark.soak --runs 40 --bad-rows 1000000
	$(bin)/python -m tests.spark.soak --runs 10 --master cluster
	$(pytest) -m 'not long' tests/unit tests/behaviour tests/property tests/sim \
		--cov=src/wherry/model --cov=src/wherry/core --cov-report=term-missing:skip-covered

check: $(tools) ## Format, lint, types and layers; changes nothing
	$(bin)/ruff format --check --quiet .
	$(bin)/ruff check --quiet .
	@$(MAKE) --no-print-directory --jobs 2 $(checks)

types:
	$(bin)/mypy

layers:
	$(bin)/lint-imports --no-logo --cache-dir build/cache/imports

# One process compiles tests and sources, beside mypy; else each worker of the first run would compile all of them.
$(compiled):
	@mkdir -p $(@D)
	@$(bin)/python -m pytest --collect-only --quiet > /dev/null
	@touch $@

format: $(tools) ## Rewrite the sources in the house format
	$(bin)/ruff check --quiet --select I --fix .
	$(bin)/ruff format .

sim: $(package) ## The simulator: SEEDS=1000 tries that many; SEED=42 replays one (PART=wires, HISTORY=1 or a file)
	@$(bin)/python -m wherry.sim $(if $(SEED),--seed $(SEED)) $(if $(SEEDS),--seeds $(SEEDS)) \
		$(if $(PART),--part $(PART)) $(if $(HISTORY),--history $(filter-out 1,$(HISTORY)))

soak-spark: $(tools) ## Spark exactly once while all around it dies (RUNS=200, MASTER=cluster; SEED=17 RUNS=1: one again)
	@$(bin)/python -m tests.spark.soak $(if $(RUNS),--runs $(RUNS)) $(if $(SEED),--seed $(SEED)) \
		$(if $(MINUTES),--minutes $(MINUTES)) $(if $(MASTER),--master $(MASTER)) \
		--bad-rows $(or $(ROWS),$(if $(SEED),0,1000000))

bench: $(peers) ## The benchmarks (ONLY=core, ONLY=lone.delays: one part); writes build/bench.json
	@mkdir -p build
	@$(bin)/python -m bench --out build/bench.json $(if $(ONLY),--only $(ONLY))

c: ## The C client: library, pkg-config file, man page and examples, in build/c (WHERRY_TLS=1: with TLS by OpenSSL)
	@$(MAKE) --no-print-directory -C clients/c BUILD=$(CURDIR)/build/c
	@echo "build/c has libwherry, wherry.pc, wherry.3, and publish, consume and bench"

docs: $(site) ## The documentation as a site with search, in build/site; a dead link is an error
	@$(bin)/python docs/site.py gather build
	@$(bin)/zensical build --strict --config-file build/zensical.toml
	@$(bin)/python docs/site.py check build
	@echo "open build/site/index.html"

clean: ## Remove everything that make made, the virtual environment too
	rm -rf build dist .hypothesis $(VENV)
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(venv):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Wherry needs Python 3.11 or newer; \
	this is " + sys.version.split()[0] + ". Name another one: make PYTHON=python3.12")'
	@test -x $(bin)/python || $(PYTHON) -m venv $(VENV)
	@touch $@

$(package): pyproject.toml | $(venv)
	@echo "installing wherry into $(VENV)"
	@$(install) --editable '.[avro,docs]'
	@touch $@

$(testing): pyproject.toml | $(venv)
	@echo "installing wherry and what its quick tests need into $(VENV)"
	@$(install) --editable '.[test]'
	@touch $@ $(package)

$(peers): pyproject.toml | $(venv)
	@echo "installing wherry and the clients of its peers into $(VENV)"
	@$(install) --editable '.[bench,spark]'
	@touch $@ $(package)

$(site): pyproject.toml | $(venv)
	@echo "installing what builds the site into $(VENV)"
	@$(install) --editable '.[site]'
	@touch $@

$(tools): pyproject.toml | $(venv)
	@echo "installing wherry and its development tools into $(VENV)"
	@$(install) --editable '.[dev]'
	@touch $@ $(package) $(testing)
