# Everything a developer or a CI machine types. Needs Python >= 3.11 and GNU make; the rest lands in .venv on first use.

PYTHON ?= python3
VENV   ?= .venv
PEERS  ?= .venv-peers
FRAMEWORKS ?= .venv-frameworks
TOOLS  ?= .venv-tools
DOCS   ?= .venv-docs

SERVERS     ?= 2
WORKERS     ?= 4
PORT        ?= 5570
ADDRESS     ?= tcp://127.0.0.1:$(PORT)
COORDINATOR ?= $(ADDRESS)
# What was said on the command line or in the environment: an address to bind, and which cluster is meant.
said         = $(filter command line environment,$(origin $(1)))
BOUND        = $(if $(call said,ADDRESS),--address '$(ADDRESS)')
# of `make coordinator`: empty for none
JOURNAL     ?= .zmqps/coordinator
MEANT        = $(if $(call said,COORDINATOR)$(call said,ADDRESS)$(call said,PORT),--coordinator '$(COORDINATOR)')
MODE        ?= sync
STALENESS   ?= 3
DEVICE      ?= cuda
SEEDS       ?= 1000
ATTACK      ?=
BASE        ?=
MINUTES     ?= 0
METRICS     ?= 127.0.0.1:5580
ARGS        ?=
DIST        ?= dist
VERSION     ?=
DRY         ?=
# of `make release`
FILES        = dist/v$(VERSION)
LAUNCH      ?=
MUTANTS     ?= 200
SEED        ?= 0
UNDER       ?= zmqps/core

ifeq ($(strip $(VENV)),)
# `make VENV= ...`: no virtualenv, use $(PYTHON) as it is; what is installed there is the caller's business.
PY        := $(PYTHON)
ZMQPS     := $(PYTHON) -m zmqps
CONTRACTS := lint-imports
INSTALLED :=
else
PY        := $(VENV)/bin/python
ZMQPS     := $(VENV)/bin/python -m zmqps
CONTRACTS := $(VENV)/bin/lint-imports
INSTALLED := $(VENV)/.installed
endif

# The rules about the text of the tree, which `make check` tries and `make test` does not again.
TREE  := $(addprefix tests/test_,advice.py architecture.py counts.py documents.py kernel.py prose.py)
# What `make test` runs, for targets that have an expression of their own or name files.
USUAL := not (slow or repeats or tree or processes or lan or engines or gpu)

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Where it is set, each of the hundreds of processes of the tests compiles every module anew.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help install check format test test-random test-python test-slow test-repeats test-processes test-lan test-clusters test-engines test-browser test-prometheus frameworks test-frameworks test-conformance test-package package attack soak freezes flat simulate mutate test-gpu bench bench-full bench-gpu bench-gate bench-cycles bench-peers bench-frameworks experiments picture screenshots metrics roles options errors docs docs-links constraints audit sbom release demo demo-sparse up down scale status observe logs trace launch doctor coordinator server worker clean

##@ Development

help: ## show this list
	@awk 'BEGIN { FS = ":.*## " } \
	  /^##@ /              { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z-]+:.*## /     { printf "  make %-12s %s\n", $$1, $$2 }' Makefile
	@printf '\nVariables: PYTHON=%s VENV=%s SERVERS=%s WORKERS=%s PORT=%s COORDINATOR=%s\n' \
	  '$(PYTHON)' '$(VENV)' '$(SERVERS)' '$(WORKERS)' '$(PORT)' '$(COORDINATOR)'
	@printf '           MODE=%s STALENESS=%s DEVICE=%s SEEDS=%s NAMES=%s SCRIPT=%s ARGS=%s\n' \
	  '$(MODE)' '$(STALENESS)' '$(DEVICE)' '$(SEEDS)' '$(NAMES)' '$(SCRIPT)' '$(ARGS)'
	@printf '           HOSTS=%s LAUNCH=%s MUTANTS=%s SEED=%s UNDER=%s MINUTES=%s ATTACK=%s BASE=%s METRICS=%s\n' \
	  '$(HOSTS)' '$(LAUNCH)' '$(MUTANTS)' '$(SEED)' '$(UNDER)' '$(MINUTES)' '$(ATTACK)' '$(BASE)' '$(METRICS)'

install: $(INSTALLED) ## create .venv with the tested versions (every target does so when needed)

check: $(INSTALLED) ## format, lint, types, imports, architecture rules, links in the docs
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(CONTRACTS) --no-logo --no-cache
	$(PY) -m pytest -q $(TREE)

screenshots: $(INSTALLED) ## take the pictures of the page and of zmqps top for the documents, with chromium: three minutes
	$(PY) -m tests.page.screenshots

picture: $(INSTALLED) ## draw the rooms and their imports into docs/architecture.md
	$(PY) -m tests.picture

counts: $(INSTALLED) ## count lines, messages, attributes, names …, of this tree and of others beside it: ARGS="path/of/another/clone"
	$(PY) -m tests.counts $(ARGS)

metrics: $(INSTALLED) ## write the tables of docs/metrics.md from the catalogue of figures
	$(PY) -m tests.figures

roles: $(INSTALLED) ## write the tables of roles and messages into docs/security.md
	$(PY) -m tests.roles

options: $(INSTALLED) ## write the table of options into docs/operations.md, and deploy/cluster.toml
	$(PY) -m tests.options

errors: $(INSTALLED) ## write docs/errors.md from the docstrings of the errors
	$(PY) -m zmqps explain --all >docs/errors.md.new && mv docs/errors.md.new docs/errors.md

docs: $(DOCS)/.installed ## the documents and the API as a site: build/docs/index.html; fails for a broken link or reference, or an error in the notebook
	$(SPHINX) -W --keep-going . build/docs

docs-links: $(DOCS)/.installed ## whether what the documents link to on other sites is there: needs the Internet
	$(SPHINX) -b linkcheck -D nb_execution_mode=off . build/docs-links

format: $(INSTALLED) ## rewrite the files the way `make check` wants them
	$(PY) -m ruff check --fix --exit-zero .
	$(PY) -m ruff format .

test: $(INSTALLED) ## the default test suite, in three processes: tests wait more than they compute
	$(PY) -m pytest --numprocesses 3 --dist loadfile

test-random: $(INSTALLED) ## the default suite's hypothesis tests with other examples each time, a minute; failures in runs/random
	HYPOTHESIS_PROFILE=random $(PY) -m pytest -m 'hypothesis and $(USUAL)' --numprocesses 3 --dist loadfile

test-python: ## the default suite on another Python, in a virtualenv of its own: PYTHON=python3.13
	$(MAKE) test VENV=.venv-$(notdir $(PYTHON))

test-slow: $(INSTALLED) ## the long tests, on two cores, about thirteen minutes: fuzzing of live servers, attacks, soaks
	$(PY) -m pytest -m slow --timeout 900 --numprocesses 3 --dist load --maxschedchunk 1 --durations 15

attack: $(INSTALLED) ## attackers beside honest training: ATTACK="stolen-server garbage" MODE=async|sync; a soak with MINUTES=20
	$(PY) -m tests.attack --attack '$(ATTACK)' --minutes $(MINUTES) $(if $(filter command line environment,$(origin MODE)),--mode $(MODE))

soak: $(INSTALLED) ## train while nodes are killed, drained, added and stopped for a while: MINUTES=10 MODE="async sync" ARGS='--faults "server freeze"'
	$(PY) -m tests.durable --minutes $(if $(filter command line environment,$(origin MINUTES)),$(MINUTES),10) $(if $(filter command line environment,$(origin MODE)),--mode '$(MODE)') $(ARGS)

freezes: $(INSTALLED) ## train while nodes and workers are stopped (SIGSTOP) two hundred times in each mode, and go on: ARGS="--number 40 --mode sync"
	$(PY) -m tests.freezes $(ARGS)

flat: $(INSTALLED) ## 500 jobs, 2,000 connections and 1,000 checkpoints on one cluster in about six minutes: what its processes hold does not grow
	$(PY) -m tests.flat $(ARGS)

test-repeats: $(INSTALLED) ## what `make test` tries in one mode, in the others: most scenarios of the simulator
	$(PY) -m pytest -m repeats --numprocesses 2

test-processes: $(INSTALLED) ## the tests with many processes for many seconds: they wait more than they compute
	$(PY) -m pytest -m 'processes and not slow' --numprocesses 3 --dist loadfile

test-lan: $(INSTALLED) ## clusters over hosts of network namespaces, with cuts, loss and slow wires; as root
	$(PY) -m pytest -m 'lan and not slow' --numprocesses 3 -rs

test-clusters: $(INSTALLED) ## test-processes and test-lan in one run, five at a time, as they wait more than they compute: what CI runs
	$(PY) -m pytest -m '(processes or lan) and not slow' --numprocesses 5 --dist loadfile --durations 20 -rs

test-engines: $(INSTALLED) ## the engines people already run: Slurm, Ray, Dask, Kubernetes manifests; each skips where it is not installed
	$(PY) -m pytest -m engines -rs

test-browser: $(INSTALLED) ## the page in a real browser, Debian's chromium; skipped where there is none
	$(PY) -m pytest -m engines -rs tests/page

test-prometheus: $(INSTALLED) ## metrics, rules and alerts as Prometheus itself reads them; skips where it is not installed
	$(PY) -m pytest -m engines --numprocesses 2 --dist loadfile -rs tests/deploy/test_observability_prometheus.py

test-package: $(INSTALLED) ## install the sdist and the wheel into empty environments of CPython 3.11 to 3.14, those at hand; of files that exist: DIST=dist
	$(if $(call said,DIST),DIST='$(abspath $(DIST))') $(PY) -m pytest -m engines -rs tests/test_installed.py

frameworks: $(FRAMEWORKS)/.installed ## install what the next target needs

test-frameworks: $(FRAMEWORKS)/.installed ## the tests with PyTorch, JAX, Keras, pyarrow, OpenTelemetry, MLflow and W&B, which are installed into a virtualenv of their own
	$(FRAMEWORKS)/bin/python -m pytest --numprocesses 3 --dist loadfile -rs -m '$(USUAL)' $(WITH_FRAMEWORKS)

test-conformance: $(FRAMEWORKS)/.installed ## PyTorch's models, optimizers, schedules and loops in pairs, with zmqps and without: SEED=0 ARGS="--only overlap"
	$(FRAMEWORKS)/bin/python -m tests.torch.conformance --processes 2 --seed $(SEED) $(ARGS)

simulate: $(INSTALLED) ## whole clusters on a simulated clock and network, with faults: SEEDS=100000
	$(PY) -m tests.simulator.simulate --seeds 0:$(SEEDS)

mutate: $(INSTALLED) ## say which small changes to the core no test notices: MUTANTS=200 SEED=0 UNDER=zmqps/core/worker
	$(PY) -m tests.mutation.run --mutants $(MUTANTS) --seed $(SEED) --under $(UNDER)

test-gpu: $(INSTALLED) ## the tests that need CuPy and a GPU
	$(PY) -m pytest -m gpu

bench: $(INSTALLED) ## the short benchmark suite, about five minutes; results in runs/bench
	$(PY) -m bench suite

bench-full: $(INSTALLED) ## all sizes, models, numbers of nodes and codecs, four optimizers: hours
	$(PY) -m bench suite --full --output runs/bench-full

bench-gpu: $(INSTALLED) ## kernels and whole steps on a GPU, beside its memory and bus: DEVICE=cuda
	$(PY) -m bench apply --device $(DEVICE) --optimizer sgd
	$(PY) -m bench apply --device $(DEVICE) --optimizer adam
	$(PY) -m bench push_pull --device $(DEVICE) --transport shm

bench-gate: $(INSTALLED) ## fail if a case is slower than at the last tag (without one, what is committed), or at BASE=commit, both measured in turns: about eight minutes
	$(PY) -m bench gate $(if $(BASE),--base '$(BASE)') $(ARGS)

bench-cycles: $(INSTALLED) ## where the interpreter's time goes in a small push_pull, by groups of functions: ARGS="--mode sync"
	$(PY) -m bench cycles $(ARGS)

bench-peers: $(INSTALLED) $(PEERS)/.installed ## zmqps beside TensorFlow, PyTorch RPC, Arrow Flight, Ray, gloo, MPI, DDP and hivemind in the same run: ARGS="--targets --runs 5"
	$(PY) -m bench peers --python $(PEERS)/bin/python $(ARGS)

bench-frameworks: $(FRAMEWORKS)/.installed ## PyTorch alone, DDP and zmqps: the same script three times, as docs/frameworks.md shows
	$(FRAMEWORKS)/bin/python -m bench.frameworks

demo: $(INSTALLED) ## train a small network on handwritten digits: SERVERS=2 WORKERS=4 MODE=sync|async|bounded STALENESS=3 FAULTS=1
	$(PY) examples/demo.py --servers $(SERVERS) --workers $(WORKERS) --mode $(MODE) --staleness $(STALENESS) $(if $(FAULTS),--faults)

demo-sparse: $(INSTALLED) ## train recommenders with sparse tables, on MovieLens-100K (which it downloads) and on made-up clicks: SERVERS=2 WORKERS=4
	$(PY) examples/demo_sparse.py --servers $(SERVERS) --workers $(WORKERS)

experiments: $(INSTALLED) ## reproduce the field's claims, with plots in runs/experiments/: NAMES="modes treatments"
	$(PY) -m experiments $(NAMES)

##@ A cluster on this machine

up: $(INSTALLED) ## start a coordinator and servers in the background: SERVERS=2 PORT=5570, or ADDRESS=tcp://10.0.0.7:5570 ARGS=--insecure
	$(ZMQPS) up --detach --servers $(SERVERS) --address $(ADDRESS) $(ARGS)

down: $(INSTALLED) ## end what `make up` started, or any cluster: COORDINATOR=tcp://10.0.0.7:5570 ARGS="--job-secret FILE"
	$(ZMQPS) down $(MEANT) $(ARGS)

scale: $(INSTALLED) ## let jobs lie on more servers, or fewer, while they are trained: SERVERS=4 COORDINATOR=tcp://10.0.0.7:5570
	$(ZMQPS) scale --servers $(SERVERS) $(MEANT) $(ARGS)

trace: $(INSTALLED) ## where the time of a step goes, of the running cluster: COORDINATOR=tcp://10.0.0.7:5570 ARGS="--seconds 5"
	$(ZMQPS) trace $(MEANT) $(ARGS)

status: $(INSTALLED) ## nodes, placement, traffic, staleness: COORDINATOR=tcp://10.0.0.7:5570 ARGS=--watch
	$(ZMQPS) status $(MEANT) $(ARGS)

observe: $(INSTALLED) ## Prometheus, and Grafana where it is installed, for a cluster that was started with --page, until Ctrl-C: METRICS=host-a:5580
	$(PY) deploy/observability/observe.py --metrics $(METRICS) $(ARGS)

logs: $(INSTALLED) ## what the nodes here have said: ARGS="server-0 -f"
	$(ZMQPS) logs $(ARGS)

##@ A cluster on many hosts

launch: $(INSTALLED) ## a cluster by ssh: HOSTS=hosts.txt SERVERS=2 WORKERS=4 SCRIPT=examples/digits.py ARGS="of the script" LAUNCH=--sync-code
	@test -n '$(HOSTS)' -a -n '$(SCRIPT)' || { echo 'Say which hosts and script: make launch HOSTS=hosts.txt SCRIPT=examples/digits.py' >&2; exit 2; }
	$(ZMQPS) launch --hosts $(HOSTS) $(LAUNCH) $(if $(filter command line environment,$(origin SERVERS)),--servers $(SERVERS)) \
	  $(if $(filter command line environment,$(origin WORKERS)),--workers $(WORKERS)) -- python $(SCRIPT) $(ARGS)

doctor: $(INSTALLED) ## what may go wrong before a run: HOSTS=hosts.txt ARGS="--model resnet50"
	$(ZMQPS) doctor $(if $(HOSTS),--hosts $(HOSTS)) $(ARGS)

##@ One node, in the foreground

coordinator: $(INSTALLED) ## a coordinator for SERVERS=2, bound to ADDRESS=tcp://10.0.0.7:5570 ARGS=--insecure; again after kill -9: it goes on from JOURNAL
	$(ZMQPS) coordinator --address $(ADDRESS) --servers $(SERVERS) $(if $(JOURNAL),--journal $(JOURNAL)) $(ARGS)

server: $(INSTALLED) ## a server that joins COORDINATOR=tcp://10.0.0.7:5570, bound to ADDRESS=tcp://10.0.0.8:0 ARGS=--insecure
	$(ZMQPS) server --coordinator $(COORDINATOR) $(if $(call said,COORDINATOR),$(BOUND)) $(ARGS)

worker: $(INSTALLED) ## a training script: SCRIPT=examples/digits.py ARGS="of the script" COORDINATOR=tcp://127.0.0.1:5570
	@test -n '$(SCRIPT)' || { echo 'Say which script: make worker SCRIPT=examples/digits.py' >&2; exit 2; }
	ZMQPS_COORDINATOR=$(COORDINATOR) $(PY) $(SCRIPT) $(ARGS)

##@ Releases and supply chain

constraints: $(TOOLS)/.installed ## renew the tested versions and their hashes, here and in constraints-tools.txt and constraints-docs.txt
	$(COMPILE) --upgrade --extra dev --extra demo --output-file constraints.txt pyproject.toml
	$(COMPILE) --upgrade --group tools --output-file constraints-tools.txt
	$(COMPILE) --upgrade --constraint constraints.txt --group docs --output-file constraints-docs.txt pyproject.toml

audit: $(TOOLS)/.installed ## known vulnerabilities of the tested versions; skipped where no database can be reached
	.ci/audit $(TOOLS)/bin/pip-audit constraints.txt constraints-tools.txt constraints-docs.txt

package: $(INSTALLED) ## the sdist and the wheel that is built from it, as `python -m build` makes them: DIST=dist
	$(PY) -m hatchling build --target sdist --directory '$(abspath $(DIST))'
	$(PY) -m pip wheel --quiet --no-index --no-deps --no-build-isolation --wheel-dir '$(DIST)' '$(DIST)'/zmqps-*.tar.gz

sbom: $(INSTALLED) $(TOOLS)/.installed ## a CycloneDX bill of materials of what is installed: dist/sbom.cdx.json
	@mkdir -p dist
	$(TOOLS)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
	  --output-file dist/sbom.cdx.json "$$(command -v $(PY))"

release: $(INSTALLED) $(TOOLS)/.installed ## all of a release but the upload: VERSION=0.1.0, and DRY=1 for all but the tag, too
	.ci/release '$(VERSION)'
	rm -rf '$(FILES)'
	$(MAKE) --no-print-directory package DIST='$(FILES)'
	$(TOOLS)/bin/twine check --strict '$(FILES)'/*
	$(MAKE) --no-print-directory test-package DIST='$(FILES)'
	$(if $(DRY),@echo 'A dry run: no tag was made.',git tag --annotate 'v$(VERSION)' --message 'zmqps $(VERSION)')
	@printf '%s\n' 'Nothing has left this machine. These two commands upload the release:' \
	  '  git push origin v$(VERSION)' \
	  '  $(TOOLS)/bin/twine upload $(FILES)/*'

##@ Housekeeping

clean: ## remove .venv, builds and caches; runs/ stays
	rm -rf .venv $(PEERS) $(FRAMEWORKS) $(TOOLS) $(DOCS) build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(PEERS)/.installed: bench/peers/requirements.txt
	@echo 'Installing TensorFlow, PyTorch, Arrow, Ray, Open MPI and hivemind into $(PEERS): about 2 GB, several minutes.'
	@test -x '$(PEERS)/bin/pip' || '$(PYTHON)' -m venv '$(PEERS)'
	$(PEERS)/bin/python -m pip install --quiet --requirement bench/peers/requirements.txt || \
	  grep -v '^#' bench/peers/requirements.txt | while read -r peer; do \
	    $(PEERS)/bin/python -m pip install --quiet "$$peer" || echo "$$peer does not install here: the benchmark names it"; done
	@touch $@

# The tests that skip where a package of tests/frameworks.txt is missing.
WITH_FRAMEWORKS = tests/torch tests/test_readme.py tests/test_jax.py tests/test_keras.py tests/examples/test_jax_digits.py tests/examples/test_torch_digits.py tests/examples/test_lightning_digits.py tests/examples/test_keras_digits.py tests/examples/test_trainer_digits.py tests/checkpoint tests/client/test_tensors_torch.py tests/client/sparse/test_rows.py tests/client/sparse/test_whole.py tests/follow/test_saved_changes.py tests/trace/test_otel.py tests/sinks/test_mlflow.py tests/sinks/test_wandb.py

$(FRAMEWORKS)/.installed: pyproject.toml constraints.txt tests/frameworks.txt
	@echo 'Installing zmqps with PyTorch, JAX and Keras into $(FRAMEWORKS): a few minutes.'
	@test -x '$(FRAMEWORKS)/bin/pip' || '$(PYTHON)' -m venv '$(FRAMEWORKS)'
	$(FRAMEWORKS)/bin/python -m pip install --quiet --no-compile --require-hashes --requirement constraints.txt
	$(FRAMEWORKS)/bin/python -m pip install --quiet --no-compile --requirement tests/frameworks.txt
	$(FRAMEWORKS)/bin/python -m pip install --quiet --no-index --no-deps --no-build-isolation --editable .
	@touch $@

# The notebook's kernel imports zmqps, too; the client of kernels does not work in asyncio's debug mode, which CI sets.
SPHINX = PYTHONASYNCIODEBUG= PYTHONPATH='$(CURDIR)' $(DOCS)/bin/python -m sphinx --nitpicky --quiet --fresh-env --write-all --jobs 2 \
  --conf-dir docs --doctree-dir build/doctrees

$(DOCS)/.installed: constraints-docs.txt
	@echo 'Installing Sphinx and what zmqps needs into $(DOCS): half a minute.'
	@test -x '$(DOCS)/bin/pip' || '$(PYTHON)' -m venv '$(DOCS)'
	$(DOCS)/bin/python -m pip install --quiet --no-compile --require-hashes --requirement constraints-docs.txt
	@touch $@

# One file, and one version of each package, for all supported Pythons; where the packages come from is for each machine
# to say.
COMPILE = UV_CUSTOM_COMPILE_COMMAND='make constraints' $(TOOLS)/bin/uv pip compile --quiet --universal \
  --python-version 3.11 --fork-strategy fewest --generate-hashes --no-annotate

$(TOOLS)/.installed: constraints-tools.txt
	@echo 'Installing the tools of the supply chain into $(TOOLS).'
	@test -x '$(TOOLS)/bin/pip' || '$(PYTHON)' -m venv '$(TOOLS)'
	$(TOOLS)/bin/python -m pip install --quiet --no-compile --require-hashes --requirement constraints-tools.txt
	@touch $@

ifneq ($(INSTALLED),)
# The stamp is written last, so an interrupted installation is taken up again by the next target. What is never imported
# need not be compiled, which takes more than all else; comparing the hashes takes next to nothing.
$(INSTALLED): pyproject.toml constraints.txt
	@command -v '$(PYTHON)' >/dev/null 2>&1 || \
	  { echo 'No $(PYTHON) here. Install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3' >&2; exit 1; }
	@'$(PYTHON)' -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	  "zmqps needs Python 3.11 or newer, and $(PYTHON) is %d.%d. Name another: make PYTHON=python3.12" % sys.version_info[:2])'
	@'$(PYTHON)' -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo '$(PYTHON) comes without venv. Install it (Debian, Ubuntu: apt install python3-venv),' \
	         'or use an environment of your own: make VENV= ...' >&2; exit 1; }
	@echo 'Installing zmqps and its tools into $(VENV); the first time this takes a minute or two.'
	@test -x '$(VENV)/bin/pip' || '$(PYTHON)' -m venv '$(VENV)'
	$(PY) -m pip install --quiet --no-compile --require-hashes --requirement constraints.txt
	$(PY) -m pip install --quiet --no-index --no-deps --no-build-isolation --editable .
	@touch $@
endif
