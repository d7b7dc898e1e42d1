# Three commands are enough: `make demo`, `make serve` and `make test`. Each does all the set-up it needs, once.
#   make demo PYTHON=python3.12           another Python
#   make demo TORCH_INDEX=ADDRESS         an extra package index, such as PyTorch's CPU one
#   make test HASHES=1                    only wheels whose SHA-256 is in requirements.txt

PYTHON ?= python3
TORCH_INDEX ?=
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
CLIENT := $(VENV)/client/.ready
MODEL := runs/ml-100k
PORT ?= 8000
SEED ?= 1
PYTHONS ?= $(PYTHON)
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help demo serve test test-wheel campaign docs bench bench-scale clean

help: ## What can be made
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST)

demo: $(READY) ## Train on MovieLens-100K, evaluate on new users, recommend ten films, write a report
	$(BIN)/idcf demo

serve: $(READY) $(MODEL)/config.json ## A page in the browser and an HTTP API, on MovieLens-100K
	$(BIN)/idcf serve $(MODEL) --port $(PORT)

$(MODEL)/config.json: | $(READY)
	$(BIN)/idcf train ml-100k --out $(MODEL)

test: $(READY) $(CLIENT) ## Format, lint, types, import contract, tests, documentation
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -n 2
	$(MAKE) docs

test-wheel: $(READY) ## The wheel without extras: every command works, or names the extra; PYTHONS="python3.11 python3.12"
	$(BIN)/python tests/wheel/check_wheel.py $(PYTHONS)

campaign: $(READY) ## Attack everything: kills, broken files, hostile requests; SEED=1 for other cases
	$(BIN)/python tests/campaign/campaign.py --seed $(SEED) --out benchmarks/reports/campaign-$(SEED).json

docs: $(READY) ## The documentation site, in docs/_build/html
	$(BIN)/sphinx-build -W --keep-going -q -b html -d docs/_build/doctrees docs docs/_build/html
	@echo "The site is docs/_build/html/index.html"

bench: $(READY) ## Speed, beside other implementations; writes benchmarks/reports/
	$(BIN)/python benchmarks/run.py

bench-scale: $(READY) ## Training over shards: growth, engines, lost workers; writes benchmarks/reports/scale.jsonl
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[ray]"
	$(BIN)/python benchmarks/scale.py all --out benchmarks/reports/scale.jsonl
	$(BIN)/python benchmarks/scale_page.py --write

clean: ## Forget the set-up, caches and runs
	rm -rf $(VENV) runs build dist docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(READY): pyproject.toml constraints.txt requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "idcf needs Python 3.11 or newer; say which: make PYTHON=..."; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
ifdef HASHES
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
else
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt \
	  $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -e ".[plots,hdf5,dev]"
endif
	@touch $@

# a generator of HTTP clients, for one test; apart, because it needs older versions of packages that idcf needs
$(CLIENT): requirements-client.txt | $(READY)
	$(BIN)/python -m venv $(VENV)/client
	$(VENV)/client/bin/pip install --quiet --disable-pip-version-check \
	  --require-hashes -r requirements-client.txt
	@touch $@
