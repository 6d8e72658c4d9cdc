# `make lab` opens the course, `make test` checks everything. Neither needs anything but Python >= 3.11.
# Each can be stopped at any moment and run again: it continues where it was.

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
WORKSPACES := $(VENV)/share/jupyter/lab/workspaces
# And what only checks need: Triton for its interpreter, a browser's driver, mypy, pdoc.
CHECKING := $(VENV)/.checking
# The static site needs no PyTorch: an environment of its own, unless there is one already.
SITE_VENV := .venv-site
SITE_PACKAGES := gguf nbconvert ipywidgets anywidget ipython jupytext latex2mathml mdit-py-plugins orjson psutil pydantic filelock platformdirs
SITE_BIN = $(if $(wildcard $(INSTALLED)),$(BIN),$(SITE_VENV)/bin)
# Still there: the last setup was cut short, and some package may be half unpacked. Start over from pip's cache.
# It outlives the clearing away: that may be cut short, too.
INSTALLING := $(VENV)/.installing
# Bytecode is written for what is used, when it is used first: that takes three seconds once, and 370 MB less. So it may
# be written, also where images of containers turn that off: each start would compile PyTorch's Python anew.
export PYTHONDONTWRITEBYTECODE :=
INSTALL = $(BIN)/python -m pip install --no-compile --progress-bar raw -c constraints.txt $(TORCH_INDEX)
# One line a step; what pip says is in the log.
LOG := $(VENV)/setup.log
STEP = @$(BIN)/python binder/step.py $(LOG)
RIGHT_PYTHON := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
# Those that constraints.txt has wheels for. A newer one may be named, at one's own risk.
TRIED_PYTHON := import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 15))

# The first Python that was tried. Choose another with `make setup PYTHON=/path/to/python3`.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c '$(TRIED_PYTHON)' 2>/dev/null && echo $$python && break; done)

# Without an NVIDIA GPU, Linux gets torch's CPU build (it is gigabytes smaller), if its index can be reached.
SYSTEM := $(shell uname)
CPU_INDEX := https://download.pytorch.org/whl/cpu/
REACH := import urllib.request; urllib.request.urlopen("$(CPU_INDEX)", timeout=5)
# Asked for once, and only by a setup; by Python, if there is one, since a machine may have no curl.
TORCH_INDEX ?= $(eval TORCH_INDEX := $(if $(PYTHON),$(shell test $(SYSTEM) = Linux && ! command -v nvidia-smi >/dev/null && { \
	echo "Asking for PyTorch's CPU build, six seconds at most ..." >&2; \
	if timeout 6 $(PYTHON) -c '$(REACH)' 2>/dev/null; then echo --extra-index-url $(CPU_INDEX); else \
	echo "$(CPU_INDEX) could not be reached, so PyTorch comes from pip's own index, there with CUDA." >&2; fi; })))$(TORCH_INDEX)
# PyPI has CUDA in torch for Linux only.
SMALL_TORCH = $(or $(filter-out Linux,$(SYSTEM)),$(findstring $(CPU_INDEX),$(TORCH_INDEX)))

# Where `make lab` opens: lesson 00, or the start page for whoever has begun the course (course/lab/progress.py).
PROGRESS = $(or $(MINILLM_HOME),$(HOME)/.cache/minillm)/progress.json
LANDING = $(if $(wildcard $(PROGRESS)),start,00_start_here)

# Options for JupyterLab, such as LAB_ARGS="--no-browser --port 8899 --allow-root"
LAB_ARGS ?=

# Tests run in so many processes of one thread each: most are Python, which would leave all other cores idle.
TEST_WORKERS ?= 2

# Where make audit keeps its tool, apart from everything else.
AUDIT := .venv-audit

# Notebooks are run in their short form, and with a third of the model's layers, which halves what they take. That's a
# fifth of what the tests take that they run beside, so one process for four of those is enough. make slow plays them
# with all 30 layers, by nbval, as readers of this course do with notebooks of their own, and those of solutions, too:
# each answer in them is graded by a test.
LESSONS = $(sort $(wildcard course/*.ipynb))
SOLUTIONS = $(sort $(wildcard solutions/*.ipynb))
SHORT_FORM = MINILLM_SHORT=1 MINILLM_STRICT=1 OMP_NUM_THREADS=1
PLAY = $(SHORT_FORM) $(BIN)/python -m course.lab.run_notebooks --layers 10 --jobs $$((($(TEST_WORKERS) + 3) / 4))
NBVAL = $(SHORT_FORM) $(BIN)/pytest --nbval-lax --nbval-current-env --nbval-cell-timeout=600 -n $(TEST_WORKERS) --dist loadfile

# How long make soak takes.
SECONDS ?= 3600

# Where make gpu-check runs: .venv if it is there, else the python3 that brought PyTorch with it.
GPU_PYTHON ?= $(if $(wildcard $(INSTALLED)),$(BIN)/python,python3)
# Options for it, such as GPU_CHECK_ARGS="--only decode_8b --redo"
GPU_CHECK_ARGS ?=

# Options for make binder-check, such as BINDER_CHECK_ARGS="--short --out binder_memory.json"
BINDER_CHECK_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup dev model lab accuracy bands fit test test-engine slow mutation coverage soak notebooks docs site lint lint-site format audit pins bench gpu-check binder-check clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS='	' read -r name text; do \
		printf '  make %-12s %s\n' "$$name" "$$text"; done

setup: $(INSTALLED) ## make .venv with the pinned dependencies

$(INSTALLED): pyproject.toml constraints.txt binder/overrides.json binder/workspace.json binder/jupyter_server_config.json
	@$(or $(PYTHON),false) -c '$(RIGHT_PYTHON)' 2>/dev/null || { \
		echo "minillm needs Python 3.11 to 3.14 with its venv module; python3 here is: $$(python3 --version 2>&1)."; \
		echo "Install one (Debian and Ubuntu: apt install python3-venv; Fedora and RHEL: dnf install python3.12;"; \
		echo "macOS: brew install python@3.13), or name one: make setup PYTHON=/path/to/python3"; exit 1; } >&2
	@$(PYTHON) -m minillm.host.before_setup  # where PyTorch can't be had, it says so, and what to do instead
	@echo "Setting up the course in $(VENV), once, a few minutes: $(if $(SMALL_TORCH),0.6 GB to fetch and 1.2 on disk,3 GB to fetch)."
	@echo "Nothing outside this folder and pip's cache changes. Ctrl-C is safe; run it again to go on."
	@$(if $(wildcard $(INSTALLING)),find $(VENV) -mindepth 1 ! -path $(INSTALLING) -delete &&) mkdir -p $(VENV)
	@$(PYTHON) binder/step.py $(LOG) "1 of 5: an environment" $(PYTHON) -m venv $(VENV)
	@touch $(INSTALLING)
	$(STEP) "2 of 5: pip" $(BIN)/python -m pip install -c constraints.txt --upgrade pip setuptools
	$(STEP) "3 of 5: PyTorch ($(if $(SMALL_TORCH),its CPU build,with CUDA))" $(INSTALL) torch
	$(STEP) "4 of 5: JupyterLab, minillm, 120 packages" $(INSTALL) --no-build-isolation -e ".[lab]"
	$(STEP) "5 of 5: PyTorch's own test programs, removed" $(BIN)/python binder/slim.py
	@mkdir -p $(VENV)/share/jupyter/lab/settings $(WORKSPACES) $(VENV)/etc/jupyter
	@cp binder/overrides.json $(VENV)/share/jupyter/lab/settings/
	@cp binder/workspace.json $(WORKSPACES)/default-37a8.jupyterlab-workspace  # the list of files is folded away
	@cp binder/jupyter_server_config.json $(VENV)/etc/jupyter/  # the lessons' sources are not listed beside the notebooks
	@mv $(INSTALLING) $@
	@echo "In a terminal of your own: source $(BIN)/activate, then minillm doctor"

dev: $(CHECKING) ## setup, and what tests need besides

$(CHECKING): $(INSTALLED)
	$(STEP) "what checks need, once: pytest, mypy, SciPy, Triton, Playwright" $(INSTALL) --no-build-isolation -e ".[docs,lab,test]"
	@touch $@

model: setup ## fetch the default model
	@$(BIN)/minillm pull >/dev/null

lab: model ## open the course in JupyterLab (LAB_ARGS="--no-browser --port 8899")
	$(STEP) "the CPU's kernels, compiled once" $(BIN)/python -m minillm.kernels.cpu  # not in the middle of the first cell
	$(STEP) "notebooks of your own, in my/" $(BIN)/python binder/copies.py
	$(STEP) "the notebooks: their pictures may be shown" \
		$(BIN)/jupyter trust --log-level=ERROR my/course/*.ipynb my/exercises/*.ipynb my/solutions/*.ipynb
	@echo "Opening my/course/$(LANDING).ipynb in JupyterLab: some seconds. If no browser opens, use one of the addresses below. Ctrl-C ends it."
	@MODEL="$${MINILLM_LAB_MODEL:-$$($(BIN)/python -m course.lab.card_model)}" && export MINILLM_LAB_MODEL="$$MODEL" && \
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/jupyter lab -y --log-level=WARN --LabApp.log_level=WARN \
		--ServerApp.root_dir="$(CURDIR)" --LabApp.workspaces_dir="$(CURDIR)/$(WORKSPACES)" --LabApp.default_url=/lab/tree/my/course/$(LANDING).ipynb $(LAB_ARGS)

# A library that takes each of them a second to import, and checks nothing here: see the file in that folder.
test: export PYTHONPATH := $(CURDIR)/tests/course/notebooks/without$(if $(PYTHONPATH),:$(PYTHONPATH))
# Tests wait now and then: for processes, clients, Chromium. All else is done beside them meanwhile, and told after them.
# It begins with what needs no model, so that it needn't wait until that is fetched and converted.
BESIDE := build/beside_the_tests
test: $(CHECKING) ## run every check: style, types, notebook drift, tests, lessons
	@mkdir -p build; rm -f $(BESIDE).*; trap 'kill 0' INT; failed=; \
	$(BIN)/ruff check . || failed="$$failed ruff"; \
	$(BIN)/ruff format --check . || failed="$$failed ruff-format"; \
	{ missed=; \
		$(BIN)/mypy || missed="$$missed mypy"; \
		$(BIN)/python -m course.lab.build --check || missed="$$missed notebook-drift"; \
		$(PLAY) $(LESSONS) || missed="$$missed lessons"; \
		echo "$$missed" >$(BESIDE).failed; } >$(BESIDE).log 2>&1 & beside=$$!; \
	$(BIN)/minillm pull >/dev/null && \
	OMP_NUM_THREADS=1 $(BIN)/pytest tests -p no:nbval -m "not slow" -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder || failed="$$failed tests"; \
	wait $$beside; cat $(BESIDE).log; failed="$$failed$$(cat $(BESIDE).failed || echo " what was beside them")"; \
	if [ -n "$$failed" ]; then echo "FAILED:$$failed" >&2; exit 1; fi; \
	echo "everything passed"

test-engine: model $(CHECKING) ## the engine's own tests, for who changes the engine
	OMP_NUM_THREADS=1 $(BIN)/pytest tests/engine tests/test_imports.py -m "not slow" -n $(TEST_WORKERS) --dist loadfile

slow: model $(CHECKING) ## run what `make test` leaves out: every combination on the whole model, fuzzers, sanitizers (75 minutes)
	@echo "It is $$(date +%H:%M). All notebooks, then 1,200 slow tests: an hour and a quarter on 2 fast cores, of which"
	@echo "one tries grammars for an hour (MINILLM_FUZZ_S=600 for less). Each test says how it went, the slowest come at the end."
	@failed=; \
	$(NBVAL) $(LESSONS) $(SOLUTIONS) || failed="$$failed notebooks"; \
	OMP_NUM_THREADS=1 $(BIN)/python -m course.lab.three_machines --jobs $(TEST_WORKERS) || failed="$$failed simulated-machines"; \
	OMP_NUM_THREADS=1 $(BIN)/pytest tests -m slow -n $(TEST_WORKERS) --dist worksteal --durations=20 -v || failed="$$failed tests"; \
	if [ -n "$$failed" ]; then echo "FAILED:$$failed" >&2; exit 1; fi

mutation: model $(CHECKING) $(BIN)/mutmut ## break core and policies in 1,800 ways: which does no test notice? (about an hour)
	OMP_NUM_THREADS=1 $(BIN)/mutmut run --max-children $(TEST_WORKERS)
	$(BIN)/mutmut results

$(BIN)/mutmut: $(INSTALLED)
	$(BIN)/python -m pip install -q -c constraints.txt mutmut

COVERED := tests/engine/core tests/engine/policies tests/engine/frontend tests/engine/robustness/test_fault_matrix.py tests/engine/robustness/test_engine_faults.py \
	tests/engine/speculation/test_drafts_in_the_engine.py tests/engine/test_lossy.py tests/engine/test_cli.py tests/docs/test_architecture.py

coverage: model $(CHECKING) ## branch coverage of core and policies by their own tests (five minutes)
	OMP_NUM_THREADS=1 $(BIN)/coverage run --branch --source=minillm/core,minillm/policies -m pytest -q -m "not slow" $(COVERED)
	$(BIN)/coverage report -m

soak: model $(CHECKING) ## the engine under toggles, aborts and faults, then the server under bad clients: two hours (SECONDS=600 each)
	PYTHONPATH=.:tests/engine OMP_NUM_THREADS=1 $(BIN)/python -m robustness.soak --seconds $(SECONDS)
	PYTHONPATH=.:tests/engine OMP_NUM_THREADS=1 $(BIN)/python -m server.soak --seconds $(SECONDS)

notebooks: model ## build the .ipynb files from their sources
	$(BIN)/python -m course.lab.example_runs
	$(BIN)/python -m course.lab.build

docs: $(CHECKING) ## write the API reference, from the docstrings, into build/api
	$(BIN)/python -m docs.api_reference build/api

site: $(if $(wildcard $(INSTALLED)),,$(SITE_VENV)/.installed) ## write the course as a static site, into build/site; in a terminal, serve and open it
	@[ ! -t 1 ] || serve=--serve; $(SITE_BIN)/python -m course.site build/site --url "$(SITE_URL)" $$serve

$(SITE_VENV)/.installed: constraints.txt
	@$(or $(PYTHON),false) -c '$(RIGHT_PYTHON)' 2>/dev/null || { echo "This needs Python 3.11 to 3.14 with its venv module." >&2; exit 1; }
	@echo "A small environment for the site, once: $(SITE_VENV), 150 MB."
	@$(PYTHON) -m venv $(SITE_VENV)
	@$(SITE_VENV)/bin/python -m pip install -q -c constraints.txt $(SITE_PACKAGES)
	@touch $@

lint: $(CHECKING) ## check the style, and the types of minillm/; print the sizes of the parts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@$(BIN)/python -m docs.sizes

# Its tools come from npm, and are no dependency of anything here.
lint-site: ## check types and style of the static site's scripts (needs Node.js, and the network)
	npx --yes -p typescript@5 tsc --noEmit --allowJs --checkJs --strict --target es2022 --lib es2022,dom,dom.iterable \
		course/site/offline.js course/site/static/*.js
	npx --yes -p typescript@5 tsc --noEmit --allowJs --checkJs --strict --target es2022 --module es2022 --lib es2022,dom,dom.iterable \
		course/lab/view/*.js course/tab/model/*.js
	npx --yes -p eslint@9 eslint --config course/site/eslint.config.mjs course/site/*.js course/site/static/*.js \
		course/lab/view/*.js course/tab/*.js course/tab/model/*.js

format: $(CHECKING) ## apply the style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# In an environment of its own: it is no dependency of anything here.
audit: $(AUDIT)/bin/pip-audit ## ask PyPI's advisory database about every pinned version (needs the network)
	$(AUDIT)/bin/pip-audit --no-deps --disable-pip -r constraints.txt

$(AUDIT)/bin/pip-audit:
	$(or $(PYTHON),false) -m venv $(AUDIT)
	$(AUDIT)/bin/python -m pip install -q -c constraints.txt pip-audit

$(AUDIT)/bin/uv: $(AUDIT)/bin/pip-audit
	$(AUDIT)/bin/python -m pip install -q -c constraints.txt uv

# The oldest glibc and macOS are those of minillm/host/platforms.py.
PINNED_PYTHONS := 3.11 3.12 3.13 3.14
PINNED_PLATFORMS := x86_64-manylinux_2_31 aarch64-manylinux_2_31 aarch64-apple-darwin

pins: $(AUDIT)/bin/uv ## ask PyPI whether each pinned version has a wheel for every Python and platform (needs the network)
	@for python in $(PINNED_PYTHONS); do for platform in $(PINNED_PLATFORMS); do echo "$$python $$platform"; \
		MACOSX_DEPLOYMENT_TARGET=14.0 $(AUDIT)/bin/uv pip compile -q --no-build --no-header -c constraints.txt \
		--python-version $$python --python-platform $$platform --extra docs --extra lab --extra otel --extra ray --extra test pyproject.toml \
		>/dev/null || exit 1; done; done

accuracy: setup ## the simulator beside public measurements: POINTS=silicon_measured.csv (ten minutes)
	$(BIN)/minillm accuracy --points "$(POINTS)"

fit: setup ## fit the engines' constants anew, and print how well they carry (needs a C++ compiler): POINTS=silicon_measured.csv
	$(BIN)/python -m course.simulator.accuracy.fitting --points "$(POINTS)" --bands course/simulator/cost/bands.json

bands: setup ## write anew how far today's stack is from measurements, which `simulate` tells (fit does the engines'): POINTS=silicon_measured.csv
	$(BIN)/minillm accuracy --points "$(POINTS)" --bands course/simulator/cost/bands.json --today

bench: model ## measure minillm beside Hugging Face; nothing else should run meanwhile
	$(BIN)/minillm bench --compare hf

gpu-check: ## on a CUDA machine: parity with the CPU, benchmarks, goals (9 minutes; again goes on)
	$(GPU_PYTHON) -m course.measure.gpu_check $(GPU_CHECK_ARGS)

binder-check: ## build what Binder builds, in a fresh folder, and run lessons in it with 2 GB of memory (a quarter of an hour)
	$(or $(PYTHON),python3) binder/check.py $(BINDER_CHECK_ARGS)

clean: ## remove .venv and caches (not the models in ~/.cache/minillm)
	rm -rf $(VENV) $(AUDIT) $(SITE_VENV) build .pytest_cache .ruff_cache .mypy_cache .hypothesis mutants *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
