# Needs make and Python 3.11 to 3.13. `make help` lists what there is to do.
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
ARGS ?=
VENV := .venv
UV_VERSION := 0.13.8

python := $(VENV)/bin/python

# Wheels only: compiling TensorFlow's dependencies takes long, and fails in the end.
install = $(python) -m pip install --quiet --no-input --no-user \
	--disable-pip-version-check --only-binary=:all: --require-hashes --requirement

# A test that ends its process ends the run: pytest-xdist 3.8 would repeat it in new
# processes without end, or wait for ever.
# tests/conftest.py gives the order. By default files with the most tests come first,
# and the few long files last, so that one process waits for the others.
# Three processes on two cores: tests of clusters wait a fifth of their time.
in_parallel := --numprocesses=3 --dist=loadfile --no-loadscope-reorder \
	--max-worker-restart=0

# Conformance tests of models that XLA can compile.
compilable := $(patsubst %,tests/conformance/test_%.py,same_training added_losses \
	parameter_averaging randomness streams step_input replica_statistics \
	gradient_reduction)

# Tests that show most in little time: of everything that is read, checked and computed,
# and of each step of a strategy. They start few processes and trace no large graph.
steps := tests/conformance/test_steps.py
quick := tests/test_architecture.py tests/docs/test_documentation.py \
	tests/test_tensorflow_facts.py tests/models \
	tests/strategies/ps/test_applied_steps.py \
	tests/strategies/ps/test_tensor_packing.py \
	tests/trainers/cli/test_flags.py tests/trainers/cli/test_help.py \
	tests/trainers/cli/test_usage_errors.py \
	tests/trainers/experiments/compare/test_caveats.py \
	tests/trainers/experiments/compare/test_statistics.py \
	tests/trainers/experiments/predict/test_performance_model.py \
	tests/trainers/experiments/predict/test_report.py \
	tests/trainers/inputs/test_cifar10.py tests/trainers/inputs/test_digits.py \
	tests/trainers/inputs/test_record_paths.py tests/trainers/inputs/test_tfrecord.py \
	tests/trainers/pipeline_parallel/test_partition.py \
	tests/trainers/pipeline_parallel/test_schedule.py \
	tests/trainers/run_dir/test_run_dir.py \
	tests/trainers/user_code/test_objective.py \
	$(steps)::test_a_loss_that_is_not_finite_leaves_the_weights_alone \
	$(steps)::test_evaluation_counts_every_example_once

.PHONY: help
help: ## List these targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 24
	@echo
	@echo 'ARGS="..." is handed on by train, test, coverage and lock, as in'
	@echo '  make train ARGS="--strategy=tower --num_replicas=4"'
	@echo '  make test ARGS="-k mirrored"'
	@echo '  make lock ARGS=--upgrade'
	@echo 'PYTHON=python3.12 chooses the Python that .venv is made with.'

.PHONY: train
train: $(VENV)/.runtime ## Train under the mirrored strategy
	$(python) -m trainers.main --strategy=mirrored $(ARGS)

.PHONY: test
test: $(VENV)/.test ## Run at least one test for every promise
	$(python) -m pytest $(in_parallel) -m "not exhaustive" $(ARGS)

.PHONY: check
check: lint ## Check style and types, and run the quick tests
	$(python) -m pytest $(in_parallel) --numprocesses=2 --quiet \
		-m "not exhaustive and not slow and not cluster" $(quick) $(ARGS)

.PHONY: test-exhaustive
test-exhaustive: $(VENV)/.test ## Run the tests that repeat a check in further ways
	$(python) -m pytest $(in_parallel) -m exhaustive $(ARGS)
	TEST_JIT_COMPILE=on $(python) -m pytest $(in_parallel) -m "not exhaustive" \
		$(compilable)

.PHONY: test-mutations
test-mutations: $(VENV)/.test ## Break the code on purpose, fault by fault, and list the tests that fail
	$(python) -m tests.conformance.mutations --record $(ARGS)

# Combines the data of all processes, also if tests have failed.
.PHONY: coverage
coverage: $(VENV)/.test ## Run the tests and list code that no test reaches
	rm -rf build/coverage
	mkdir -p build/coverage
	$(python) -m coverage run -m pytest $(in_parallel) -m "not exhaustive" $(ARGS); \
		status=$$?; \
		$(python) -m coverage combine --quiet && \
		$(python) -m coverage html --quiet && \
		$(python) -m coverage report --skip-covered | sed -n '1,25p;$$p' && \
		echo 'Line by line: build/coverage/html/index.html' && \
		exit $$status

.PHONY: table
table: $(VENV)/.test ## Compare all strategies on three models, for docs/results.md
	$(python) -m benchmarks.strategy_table

.PHONY: wheel
wheel: $(VENV)/.runtime ## Build the package for pip into build/wheel
	$(python) -m pip wheel --quiet --no-deps --wheel-dir=build/wheel .

.PHONY: lint
lint: $(VENV)/.test ## Check style and types
	$(python) -m ruff check
	$(python) -m ruff format --check
	$(python) -m mypy

.PHONY: format
format: $(VENV)/.test ## Sort imports, apply automatic fixes, format the code
	$(python) -m ruff check --fix-only
	$(python) -m ruff format

# Documents at their paths of the repository, so that links between them work.
site_pages := README.md BUILD.md CONTRIBUTING.md CHANGELOG.md docs deploy examples

.PHONY: docs
docs: $(VENV)/.test ## Build the documentation as a site into build/site
	rm -rf build/site-docs build/site
	mkdir -p build/site-docs/benchmarks build/site-docs/tests/fault_injection
	cp -r $(site_pages) build/site-docs
	cp -r benchmarks/results build/site-docs/benchmarks
	cp -r tests/fault_injection/results build/site-docs/tests/fault_injection
	NO_MKDOCS_2_WARNING=1 $(python) -m mkdocs build --quiet
	@echo 'Open build/site/docs/index.html in a browser.'

.PHONY: install
install: $(VENV)/.runtime ## Install the packages of training into .venv

.PHONY: install-test
install-test: $(VENV)/.test ## Install the packages of tests as well

.PHONY: install-gpu
install-gpu: $(VENV)/.gpu ## Install NVIDIA's libraries as well (Linux)

.PHONY: lock
lock: build/uv/.$(UV_VERSION) ## Pin the packages that pyproject.toml names
	$(call compile,runtime)
	$(call compile,test,--extra=test --extra=docs --extra=mlflow --extra=optuna --extra=ray \
		--extra=wandb --constraints=requirements/runtime.lock)
	$(call compile,gpu,--extra=gpu --constraints=requirements/runtime.lock)

.PHONY: clean
clean: ## Remove .venv, caches and build/; runs/ stays
	rm -rf $(VENV) build .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One lock holds every Python version and platform, told apart by markers.
compile = build/uv/bin/uv pip compile pyproject.toml \
	--output-file=requirements/$(1).lock $(2) $(ARGS) \
	--universal --python-version=3.11 --generate-hashes --only-binary=:all: \
	--no-python-downloads --quiet \
	--no-header --no-emit-index-url --no-emit-find-links

build/uv/.$(UV_VERSION):
	$(complain)
	$(PYTHON) -m venv --clear build/uv
	build/uv/bin/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	touch $@

# An empty file in .venv marks each step that is done. A newer lock repeats it.
$(VENV)/.runtime: $(VENV)/.made requirements/runtime.lock
	@echo 'Installing TensorFlow and Keras into $(VENV): 700 MB the first time, so minutes.'
	@$(install) requirements/runtime.lock
	@touch $@

$(VENV)/.test $(VENV)/.gpu: $(VENV)/.%: $(VENV)/.runtime requirements/%.lock
	@echo 'Installing requirements/$*.lock into $(VENV).'
	@$(install) requirements/$*.lock
	@touch $@

# .venv stays until it no longer works or PYTHON asks for another version.
asked := $(if $(filter file,$(origin PYTHON)),,$(PYTHON))
venv_fits := $(shell $(python) -c 'import pip' 2>/dev/null && \
	{ test -z "$(asked)" || \
	test "$$($(python) -V 2>&1)" = "$$($(asked) -V 2>&1)"; } && echo yes)

$(VENV)/.made: $(if $(venv_fits),,always)
	$(complain)
	@echo 'Making $(VENV) with $(PYTHON).'
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

.PHONY: always
always:

# Ends make with one line if PYTHON will not do.
complain = @$(if $(problem),$(error $(problem)))
problem = $(shell \
	version=$$($(PYTHON) -c "import sys; print('%d.%d.%d' % sys.version_info[:3])" \
		2>/dev/null) || \
		{ echo "$(PYTHON) does not run; $(remedy)"; exit; }; \
	case $$version in \
		(3.1[1-3].*) ;; \
		(*) echo "$(PYTHON) is Python $$version, and TensorFlow 2.21 with Keras 3.15 needs 3.11 to 3.13; $(remedy)"; exit ;; \
	esac; \
	$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		echo "$(PYTHON) cannot make virtual environments; install its venv package (apt-get install python$${version%.*}-venv), or $(remedy)")
remedy = name a Python 3.11 to 3.13 that is installed: make PYTHON=python3.12 $(MAKECMDGOALS)
