# make demo   two environments, and the two main jobs: score a table that comes with the package; run the benchmark on made-up images
# make test   an environment with everything, and every check; `make help` lists the single steps
PYTHON ?= python3
VENV ?= .venv
LIGHT ?= .venv-light
WORKERS ?= 2
# Debian packages the tests use: a browser for the HTML report
APT_PACKAGES ?= chromium

BIN := $(VENV)/bin
FACTS := settings.ini setup.py pyproject.toml MANIFEST.in
SOURCES := $(FACTS) README.md $(shell find fairmedfm -type f ! -name '*.pyc')
export PATH := $(abspath $(BIN)):$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
.NOTPARALLEL:
.DELETE_ON_ERROR:

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# -- environments --

.PHONY: env
env: $(VENV)/.ready ## the environment for working on the package (.venv)

# the same environment in two steps: what a benchmark run needs (for make demo), then what the tests need beside it
$(VENV)/.cls: settings.ini setup.py pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("fairmedfm needs Python 3.10 or newer (PYTHON=... chooses one)" if sys.version_info < (3, 10) else 0)'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "== environment $(VENV) (a few minutes the first time: PyTorch is large)"
	@$(BIN)/python -m pip install -q --upgrade pip
	@$(BIN)/python -m pip install -q -e '.[cls,plots]'
	@touch $@

$(VENV)/.ready: $(VENV)/.cls
	@echo "== environment $(VENV), what the tests need"
	@$(BIN)/python -m pip install -q -e '.[dev]'
	@$(BIN)/python -m pip check
	@touch $@

$(LIGHT)/.ready: $(SOURCES)
	@$(PYTHON) -c 'import sys; sys.exit("fairmedfm needs Python 3.10 or newer (PYTHON=... chooses one)" if sys.version_info < (3, 10) else 0)'
	@test -x $(LIGHT)/bin/python || $(PYTHON) -m venv $(LIGHT)
	@echo "== environment $(LIGHT)"
	@rm -rf build
	@$(LIGHT)/bin/python -m pip install -q .
	@touch $@

.PHONY: os
os: ## Debian packages that the tests use, where apt-get is at hand
	@tools/os_packages.sh $(APT_PACKAGES)

# -- the main job --

.PHONY: demo demo-table demo-benchmark
demo: demo-table demo-benchmark ## both of these

demo-table: $(LIGHT)/.ready ## score a real table that comes with the package
	@$(LIGHT)/bin/fairmedfm demo

demo-benchmark: $(VENV)/.cls ## images with a known gap, a linear probe on them, and what was found: from nothing, in _demo/
	@rm -rf _demo
	@echo && echo "== Phantom2D x EfficientNet-Lite0 x lp"
	@$(BIN)/fairmedfm demo --benchmark --out _demo

# -- writing --

.PHONY: export clean-nbs readme outputs
export: $(VENV)/.ready ## notebooks -> modules, clean notebooks, README
	@$(BIN)/nbdev-export
	@$(BIN)/nbdev-clean
	@$(BIN)/python tools/readme.py

readme: ## README.md from nbs/index.ipynb
	@$(PYTHON) tools/readme.py

outputs: $(VENV)/.ready ## run every notebook and store its outputs, then export
	@OMP_NUM_THREADS=1 $(BIN)/nbdev-test --save --n-workers $(WORKERS)
	@$(MAKE) --no-print-directory export

# -- checking --

.PHONY: test
test: os env step docs light pytest ## everything

.PHONY: step docs light notebooks slow pytest
step: $(VENV)/.ready ## modules, notebooks and README are in step
	@echo "== in step"
	@$(BIN)/python tools/in_step.py

docs: $(VENV)/.ready ## build every page into _docs/, check every link
	@echo "== documentation"
	@$(BIN)/python tools/docs.py

light: $(LIGHT)/.wheel ## the wheel, alone with NumPy, pandas and scikit-learn
	@echo "== wheel alone"
	@FAIRMEDFM_LIGHT=1 $(LIGHT)/bin/pytest -q -p no:cacheprovider tests/test_light.py

$(LIGHT)/.wheel: dist/.ready
	@test -x $(LIGHT)/bin/python || $(PYTHON) -m venv $(LIGHT)
	@$(LIGHT)/bin/python -m pip install -q dist/*.whl pytest
	@$(LIGHT)/bin/python -m pip install -q --force-reinstall --no-deps dist/*.whl
	@touch $(LIGHT)/.ready $@

dist/.ready: $(VENV)/.ready $(SOURCES)
	@echo "== source archive and wheel"
	@rm -rf dist
	@$(BIN)/python -m build -o dist . >dist.log 2>&1 || { tail -n 40 dist.log; exit 1; }
	@rm -f dist.log
	@touch $@

.PHONY: dist
dist: dist/.ready ## source archive and wheel into dist/

notebooks: $(VENV)/.ready ## every cell of every notebook
	@$(BIN)/pytest -n $(WORKERS) --dist worksteal tests/test_notebooks.py

slow: $(VENV)/.ready ## the same with the cells marked slow
	@$(BIN)/pytest -n $(WORKERS) --dist worksteal --nb-flags slow tests/test_notebooks.py

pytest: $(VENV)/.ready ## every notebook cell and every test
	@echo "== tests"
	@$(BIN)/pytest -n $(WORKERS) --dist worksteal

.PHONY: clean
clean: ## what was built; the environments stay
	@rm -rf _proc _docs _demo build dist dist.log nbs/nbdev.yml nbs/sidebar.yml .pytest_cache .hypothesis
	@find fairmedfm tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
