# Every target first prepares its prerequisites: a fresh machine needs only python3 (3.11 or newer) and make.
#   make milestones   write all milestone reports to milestones/output
#   make lab          open JupyterLab on copies of the notebooks, in lab/, which git ignores
#   make docs         build the documentation site, which works offline, in build/docs
#   make test         run the quick tests of all that needs only the package, including the notebooks: minutes
#   make test-all     also run the slow ones: reports, browser, definition, oracle, build, a short fuzzing campaign
#   make lint         check format, style, types and spelling
#   make check        also check layers, docs and notebook pairs, as `make test` does
#   make oracle       compare random traffic on random machines with the oracle; ORACLE='--machines 10000 --seed 7' for more
#   make fuzz         run the fuzzing campaign (docs/reliability.md); FUZZ='--scale 0.1 --seed 7' for a part
#   make frontends    install torch and triton (6 GB, in build/frontends), and run the quick tests that need them
#   make frontends-all  also run the slow ones: notebooks, models, kernels of packages
#   make definition   test the engine, components, collectives and kernels on the definition, without the core
#   make sanitize     run the engine's tests on a core built with memory and arithmetic sanitizers
#   make mutations    break each rule of docs/model.md in a copy, and check that a test fails; MUTATIONS='m4 m8_6' for some
#   make bench        measure the speed of the simulator, into benchmarks/README.md
#   make sync         write the notebooks from their .py halves, then run them, so that the outputs are current
#   make core         compile the changed parts of the simulator's core
#   make screenshots  write the screenshots that the tests of the browser compare with; look at each before you commit it
#   make lock         regenerate requirements.lock

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
PYTEST := $(PY) -m pytest
ON_BOTH := $(wildcard $(foreach part,ccl sim_engine components triton_emu kernels,tests/$(part) kernbench/$(part))) tests/reference
CORE := $(PY) setup.py --quiet build_ext --inplace
SOURCES := $(filter-out %/conftest.py,$(wildcard notebooks/*.py milestones/*.py))
WITH_TORCH := notebooks/07_bring_your_model.ipynb milestones/models.ipynb milestones/serving.ipynb
NBVAL := --nbval --nbval-current-env --nbval-cell-timeout 120 --nbval-sanitize-with tests/notebooks/sanitize.cfg
EXECUTE := -m jupyter nbconvert --log-level=WARN --to notebook --inplace --execute \
  --ExecutePreprocessor.record_timing=False --ExecutePreprocessor.store_widget_state=False

# Without bytecode, each process would compile its imports: one second for most, two with charts.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := milestones
.PHONY: core milestones lab docs test test-all slow lint check definition sanitize oracle frontends frontends-all msccl fuzz mutations bench sync screenshots lock clean

# The core is compiled while packages are installed; `make milestones` also prints a first answer meanwhile. uv installs in
# seconds, pip in a minute; pip is the fallback where uv is not available.
FIRST :=
INSTALL = $(VENV)/bin/uv pip install --quiet --python $(PY) $(1) || $(PY) -m pip install --quiet --disable-pip-version-check $(1)
$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kernbench needs Python 3.11 or newer; $(PYTHON) is " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
	-$(PY) -m pip install --quiet --disable-pip-version-check uv
	$(call INSTALL,$(shell grep -iE '^(cython|setuptools)=' requirements.lock))
	$(CORE) & core=$$!; export KERNBENCH_ENGINE=definition; { $(call INSTALL,-r requirements.lock -e .); } $(FIRST); \
	  installed=$$?; wait $$core && exit $$installed
	@touch $@

core: $(READY)
	@$(CORE)

milestones: FIRST := && $(PY) -m kernbench gemm 256 256 256
milestones: core
	$(PY) -m kernbench milestone --all

lab: core
	$(PY) -m kernbench lab

docs: core
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet
	@echo "wrote build/docs/index.html: open it in a browser"

# One process per core, which runs whole files in this order (conftest.py); the notebooks take longest.
QUICK := -m "not slow"
test: core
	$(PYTEST) -n logical $(NBVAL) $(QUICK) notebooks milestones tests kernbench

test-all: definition test slow

slow: core
	$(PYTEST) -n logical -m slow tests

lint: $(READY)
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(PY) -m codespell_lib

check: core lint
	$(PYTEST) -q tests/test_repo.py tests/test_layers.py tests/test_docs.py tests/test_docstrings.py tests/notebooks/test_pairs.py

definition: $(READY)
	KERNBENCH_ENGINE=definition $(PYTEST) -n logical $(ON_BOTH)

# In a separate copy: a core with sanitizers is slow, and runs only if their library is preloaded. greenlet copies stacks as
# raw memory, so stack checks are off.
SANITIZED := build/sanitize
SANITIZE := -g1 -O1 -fno-omit-frame-pointer -fsanitize=address,undefined --param asan-stack=0
sanitize: $(READY)
	rm -rf $(SANITIZED) && mkdir -p $(SANITIZED)
	git ls-files -z | xargs -0 cp --parents --target-directory $(SANITIZED)
	cd $(SANITIZED) && CFLAGS="$(SANITIZE)" KERNBENCH_ENGINE=core \
	  $(CURDIR)/$(PY) setup.py --quiet build_ext --inplace
	cd $(SANITIZED) && LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" \
	  ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 PYTHONMALLOC=malloc KERNBENCH_ENGINE=core \
	  $(CURDIR)/$(PYTEST) -q --capture=sys tests/sim_engine tests/components

oracle: core
	$(PY) -m tests.oracle $(ORACLE)

# In an environment apart: torch brings gigabytes that nothing else needs. A part of the acceptance: docs/reliability.md has
# the commands that run all of it. Triton's interpreter is chosen when Triton is imported, so its tests have their own process.
FRONTENDS := build/frontends
$(FRONTENDS)/.ready: $(READY)
	$(PYTHON) -m venv $(FRONTENDS)
	KERNBENCH_ENGINE=definition $(VENV)/bin/uv pip install --quiet --python $(FRONTENDS)/bin/python -r requirements.lock -e .[torch,frontends]
	@touch $@

TORCH_PYTEST := KERNBENCH_TORCH=required $(FRONTENDS)/bin/python -m pytest -n logical
frontends: core $(FRONTENDS)/.ready
	$(TORCH_PYTEST) $(QUICK) tests/torch
	$(TORCH_PYTEST) $(QUICK) tests/triton

frontends-all: frontends
	$(TORCH_PYTEST) $(NBVAL) $(WITH_TORCH)
	$(TORCH_PYTEST) -m slow tests/torch tests/studies/test_models.py tests/studies/test_serving.py tests/dtensor/test_oracle.py tests/runtime_api/test_distributed_oracle.py
	$(FRONTENDS)/bin/python -m tests.triton.acceptance norm softmax

msccl: core
	$(PY) -m tests.acceptance.msccl $(MSCCL)

fuzz: core
	$(PY) -m tests.fuzz $(FUZZ)

mutations: $(READY)
	$(PY) -m tests.mutations $(MUTATIONS)

# On one core: numpy's matrix products would use all of them.
bench: core
	OPENBLAS_NUM_THREADS=1 $(PY) -m benchmarks

# The .py is the source: touching it makes it the newer half, from which jupytext takes the cells. Outputs that remain may be
# stale, so every notebook is run. It runs on the core, because without it the first cells would warn.
sync: export KERNBENCH_ENGINE ?= core
sync: core
	touch $(SOURCES)
	$(PY) -m jupytext --quiet --sync --set-kernel python3 $(SOURCES)
	$(PY) $(EXECUTE) $(filter-out $(WITH_TORCH),$(SOURCES:.py=.ipynb))
	@if [ -x $(FRONTENDS)/bin/python ]; then $(FRONTENDS)/bin/python $(EXECUTE) $(WITH_TORCH); \
	  else echo "not run without PyTorch: $(WITH_TORCH); make frontends installs it"; fi
	$(PY) -m tests.notebooks.stills $(SOURCES:.py=.ipynb)

screenshots: core
	$(PYTEST) -q tests/notebook/test_browser.py tests/notebook/test_browser_look.py --renew-screenshots

lock: $(READY)
	$(VENV)/bin/uv pip compile --quiet --universal --no-header --no-annotate --python-version 3.11 \
	  --extra notebook --extra docs --extra web --extra test --extra cluster pyproject.toml -o requirements.lock

clean:
	find kernbench -name '*.so' -delete -o -name '*.pyd' -delete -o -name '*.built' -delete
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
