# The entry point for developers and CI.
# It requires Python >= 3.11, a Rust toolchain and make.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-builtin-rules --no-print-directory
.DELETE_ON_ERROR:
# Steps print what they do. Parallel steps would mix their output, and cargo runs one build at a time.
.NOTPARALLEL:
.DEFAULT_GOAL := help

VENV := $(CURDIR)/.venv
BIN := $(VENV)/bin
RUN := $(BIN)/python

# The first interpreter that is new enough; `make PYTHON=/path/to/python3 build` chooses another.
ifndef PYTHON
PYTHON := $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { command -v "$$p"; break; }; done; true)
endif

# The environment does not depend on the calling shell.
export VIRTUAL_ENV := $(VENV)
export PYO3_PYTHON := $(RUN)
export PATH := $(CURDIR)/.build/bin:$(BIN):$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# The certificate authority of a company is in the system's store and not in that of uv.
export UV_SYSTEM_CERTS := 1
unexport PYTHONPATH PYTHONHOME CONDA_PREFIX
# Without bytecode, which images of containers often turn off, every process that a test starts compiles its modules again.
unexport PYTHONDONTWRITEBYTECODE

EXTENSION := python/scorer/_scorer.abi3.so
# Directories are listed too, so that a removed file counts as a change.
RUST_SOURCES := $(shell find rust protos -path rust/fuzz -prune -o \( -type d -o -name '*.rs' -o -name '*.proto' -o -name Cargo.toml \) -print) \
	Cargo.toml Cargo.lock rust-toolchain.toml pyproject.toml

# The stamp contains the checksum of the extension, so that an extension from elsewhere does not count as a build.
CHECKSUM := cat $(EXTENSION) 2>/dev/null | cksum
ifneq ($(shell $(CHECKSUM)),$(shell cat $(VENV)/.extension 2>/dev/null))
$(VENV)/.extension: stale
endif
# Recreate .venv if its interpreter was removed from the machine.
ifeq ($(shell test -x '$(RUN)' && echo there),)
$(VENV)/.packages: stale
endif
.PHONY: stale
stale:

define say
@printf '\n\033[1m== %s\033[0m\n' $(1)
endef

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

.PHONY: build
build: $(VENV)/.extension ## Create .venv with pinned packages, and build the extension in release mode

$(VENV)/.packages: requirements/dev.txt requirements/build.txt
	@'$(or $(PYTHON),python3)' -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		found=$$('$(or $(PYTHON),python3)' --version 2>/dev/null) || found=none; \
		echo "error: Python 3.11 or newer is required (found: $$found); install it, or set its path: make PYTHON=/path/to/python3" >&2; exit 1; }
	@'$(PYTHON)' -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "error: $(PYTHON) cannot create virtual environments; install its venv package (Debian: apt-get install python3-venv)" >&2; exit 1; }
	$(call say,'Python packages')
	@[ -x '$(RUN)' ] && '$(RUN)' -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || '$(PYTHON)' -m venv --clear '$(VENV)'
	@'$(RUN)' -m pip install --quiet --require-hashes -r requirements/build.txt
	@'$(BIN)/uv' pip sync --python '$(RUN)' --require-hashes requirements/dev.txt
	@touch $@

.PHONY: cargo
cargo:
	@command -v cargo >/dev/null || { echo "error: cargo not found; install Rust (https://rustup.rs), then open a new shell" >&2; exit 1; }

$(VENV)/.extension: $(VENV)/.packages $(RUST_SOURCES) | cargo
	$(call say,'Rust extension (release build)')
	@'$(BIN)/maturin' develop --release --locked --uv
	@$(CHECKSUM) > $@

.PHONY: demo
demo: build ## Train, serve, score, select actions and swap bundles in 1 to 2 minutes; with learning and releases: make demo ARGS=--full
	@'$(RUN)' -m examples.demo $(ARGS)

.PHONY: up
up: build ## Serve the demo's bundles and the platform's pages with generated payments until Ctrl-C; options: make up ARGS='--pages-port 0'
	@'$(RUN)' -m examples.demo.up $(ARGS)

.PHONY: test
test: lint test-rust test-python ## Run lint, the Rust tests and the Python tests

.PHONY: test-rust
test-rust: $(VENV)/.packages | cargo ## Run the Rust tests
	$(call say,'Rust tests')
	@cargo test --locked --quiet

# The kernels of another processor. If a tool is missing, the target prints its name and skips the tests.
NEON := aarch64-unknown-linux-gnu
.PHONY: test-neon
test-neon: | cargo ## Run the engine's tests on an emulated AArch64, for its NEON kernels
	$(call say,'Engine on AArch64 (emulated)')
	@skip() { echo "skipped: $$1"; exit 0; }; \
	qemu=$$(command -v qemu-aarch64-static || command -v qemu-aarch64) || skip 'no qemu-aarch64 (Debian: apt-get install qemu-user-static)'; \
	command -v aarch64-linux-gnu-gcc >/dev/null || skip 'no aarch64-linux-gnu-gcc (Debian: apt-get install gcc-aarch64-linux-gnu)'; \
	[ -d "$$(rustc --print target-libdir --target $(NEON))" ] || skip 'no Rust for AArch64 (rustup target add $(NEON))'; \
	CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
	CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="$$qemu -L /usr/aarch64-linux-gnu" \
	cargo test --locked --quiet --package scorer-core --lib --target $(NEON)

# Two test files run in parallel. Tests marked `alone` run without others. PROCESSES=0 runs all tests one after another.
# The files are taken in the order of tests/conftest.py, the longest ones first. The last line of `make test` is that of pytest.
.PHONY: test-python
test-python: build ## Run the Python tests; options: make test-python ARGS='-m "not slow" tests/unit'
	$(call say,'Python tests')
	@'$(RUN)' -m pytest --numprocesses $(or $(PROCESSES),2) --dist loadfile --no-loadscope-reorder $(ARGS)

.PHONY: fuzz-api
fuzz-api: build ## Fuzz the REST API from its OpenAPI description for some minutes, with a new seed; options: make fuzz-api EXAMPLES=100
	$(call say,'REST API under fuzzing')
	@FUZZ_EXAMPLES='$(or $(EXAMPLES),40)' '$(RUN)' -m pytest -s tests/contract/test_platform_api_fuzz.py

.PHONY: poisoning
poisoning: build ## Forge outcomes of 30 % of the decisions, and compare the candidates trained with and without them
	$(call say,'Forged outcomes')
	@'$(RUN)' -m pytest -s tests/integration/test_poisoning.py $(ARGS)

# Instrumentation and Miri need a nightly toolchain. After raising its version, run `make fuzz miri`.
NIGHTLY ?= nightly-2026-05-20
FUZZ_SECONDS ?= 600
.build/fuzz/bin/cargo-fuzz: | cargo
	$(call say,'cargo-fuzz')
	@cargo install --quiet --locked --root .build/fuzz cargo-fuzz@0.13.2

.PHONY: fuzz
fuzz: .build/fuzz/bin/cargo-fuzz ## Fuzz the parsers of untrusted bytes, 10 minutes each; options: make fuzz FUZZ_SECONDS=60 TARGETS='forest log'
	$(call say,'Fuzzing')
	@nightly=$$(scripts/nightly.sh '$(NIGHTLY)'); \
	'$(or $(PYTHON),python3)' scripts/fuzz.py --toolchain "$$nightly" --seconds '$(FUZZ_SECONDS)' $(TARGETS)

# Miri runs the `unsafe` code and the code that it relies on. All other code forbids `unsafe`.
.PHONY: miri
miri: | cargo ## Run the evaluators' unsafe code under Miri, portable and AVX2 (some minutes)
	$(call say,'Evaluators under Miri')
	@nightly=$$(scripts/nightly.sh '$(NIGHTLY)'); \
	for features in '' $$([ "$$(uname -m)" != x86_64 ] || echo '-Ctarget-feature=+avx2,+bmi1,+bmi2,+popcnt'); do \
		echo "instructions: $${features:-portable}"; \
		RUSTFLAGS="$$features" CARGO_TARGET_DIR=target/miri cargo "+$$nightly" miri test --locked --quiet --package scorer-core --lib -- small; \
	done

# All crates are compiled together, because their dependencies then have the features of `make test-rust` and are not
# compiled a second time.
LOOM := admission engine observe log
.PHONY: loom
loom: | cargo ## Check lock-free data structures in all interleavings (loom)
	$(call say,'Models of concurrency')
	@features='$(foreach crate,$(LOOM),scorer-$(crate)/loom)'; \
	cargo test --locked --quiet --features "$${features// /,}" --lib models:: -- --skip tests::models::

.PHONY: kills
kills: build ## Run 200 change requests while server, shadow pool and platform are killed; options: make kills ARGS='--seed 7'
	$(call say,'Change requests under kill -9')
	@'$(RUN)' -m loadtests.kills $(ARGS)

.PHONY: kill-rounds
kill-rounds: build ## Run 200 rounds of SIGKILL under load, and compare with a client-side ledger; options: make kill-rounds ROUNDS=500
	$(call say,'SIGKILL under load')
	@SCORER_KILL_ROUNDS='$(or $(ROUNDS),200)' '$(RUN)' -m pytest --timeout=0 tests/integration/test_kill9.py

.PHONY: ship-kills
ship-kills: build ## Run 100 rounds of SIGKILL of shipper, server and broker under traffic, and count what was shipped; options: make ship-kills ROUNDS=20
	$(call say,'SIGKILL of shipper and server and broker')
	@SCORER_SHIP_KILLS='$(or $(ROUNDS),100)' '$(RUN)' -m pytest -s --timeout=0 tests/integration/test_ship_kill9.py

.PHONY: lint
lint: lint-rust lint-python ## Check formatting, lints, types, stubs and generated code

.PHONY: lint-rust
lint-rust: $(VENV)/.packages | cargo
	$(call say,'Rust formatting and lints')
	@cargo fmt --all --check
	@cargo fmt --manifest-path rust/fuzz/Cargo.toml --check
	@cargo fmt --manifest-path loadtests/peers/rules/Cargo.toml --check
	@cargo clippy --locked --workspace --all-targets --quiet -- -D warnings
	@'$(RUN)' scripts/module_cycles.py

.PHONY: lint-style
lint-style: $(VENV)/.packages
	$(call say,'Python formatting and lints')
	@'$(BIN)/ruff' check
	@'$(BIN)/ruff' format --check

.PHONY: lint-python
lint-python: lint-style build
	$(call say,'Python types')
	@'$(BIN)/mypy'
	@'$(RUN)' -m mypy.stubtest --concise --mypy-config-file pyproject.toml scorer._scorer
	$(call say,'Python layers')
	@'$(BIN)/lint-imports' --no-cache
	$(call say,'Generated code')
	@'$(RUN)' scripts/gen_protos.py --check
	@'$(RUN)' scripts/gen_sdk.py --check
	$(call say,'Fault cases and their tests')
	@'$(RUN)' scripts/fault_cases.py --check
	@'$(RUN)' scripts/agent_tools.py --check

.PHONY: fault-cases
fault-cases: $(VENV)/.packages ## Write the table of docs/security.md: each fault case with the tests that assert it
	@'$(RUN)' scripts/fault_cases.py

.PHONY: format
format: $(VENV)/.packages | cargo ## Format Rust and Python in place
	@cargo fmt --all
	@cargo fmt --manifest-path rust/fuzz/Cargo.toml
	@cargo fmt --manifest-path loadtests/peers/rules/Cargo.toml
	@'$(BIN)/ruff' check --fix --quiet
	@'$(BIN)/ruff' format

# Peers have a separate environment, with hashes as all others.
PEERS := $(CURDIR)/.build/bench/venv
$(PEERS)/.packages: requirements/bench.txt $(VENV)/.packages
	$(call say,'Peers of the benchmarks')
	@'$(BIN)/uv' venv --quiet --clear --python '$(RUN)' '$(PEERS)'
	@'$(BIN)/uv' pip sync --quiet --python '$(PEERS)/bin/python' --require-hashes requirements/bench.txt
	@touch $@

.PHONY: bench-peers
bench-peers: $(PEERS)/.packages

.PHONY: bench
bench: build bench-peers ## Measure all figures and their peers, into loadtests/results; groups: make bench ARGS='engine policy'
	@'$(RUN)' -m loadtests.bench $(ARGS)

.PHONY: bench-quick
bench-quick: build bench-peers ## Measure the figures that detect regressions, and compare them with loadtests/baseline.json
	@'$(RUN)' -m loadtests.quick $(ARGS)

.PHONY: bench-baseline
bench-baseline: build bench-peers ## Measure the baseline of this machine again, after an intended change
	@'$(RUN)' -m loadtests.quick --update $(ARGS)

# The peers of learning run in the process that measures, so their environment also contains our packages.
LEARNING := $(CURDIR)/.build/learning/venv
$(LEARNING)/.packages: requirements/learning.txt requirements/learning-obp.txt $(VENV)/.packages
	$(call say,'Peers of the learning benchmarks')
	@'$(BIN)/uv' venv --quiet --clear --python '$(RUN)' '$(LEARNING)'
	@'$(BIN)/uv' pip sync --quiet --python '$(LEARNING)/bin/python' --require-hashes requirements/learning.txt
	@'$(BIN)/uv' pip install --quiet --no-deps --python '$(LEARNING)/bin/python' --require-hashes -r requirements/learning-obp.txt
	@touch $@

.PHONY: learning-peers
learning-peers: $(LEARNING)/.packages

.PHONY: bench-learning
bench-learning: build learning-peers ## Measure learning and its peers; parts: make bench-learning ARGS='estimators intervals'
	@PYTHONPATH='$(CURDIR)/python' '$(LEARNING)/bin/python' -m loadtests.learning $(ARGS)

# shap runs in the process that measures, so its environment also contains the packages of the engine.
.PHONY: bench-explain
bench-explain: build .build/explain/.packages ## Measure reason codes and exact contributions beside XGBoost and shap (2 minutes)
	@PYTHONPATH='$(CURDIR)/python' .build/explain/bin/python -m loadtests.explain $(ARGS)

.PHONY: bench-onnx
bench-onnx: build ## Measure an ONNX model of three layers of 64 for one row beside ONNX Runtime
	@'$(RUN)' -m loadtests.onnx $(ARGS)

.PHONY: bench-shapes
bench-shapes: build bench-peers ## Measure forests of every shape beside ONNX Runtime, XGBoost and LightGBM; options: make bench-shapes ARGS='--only deep exact'
	@PYTHONPATH='$(CURDIR):$(CURDIR)/python' '$(PEERS)/bin/python' -W ignore -m loadtests.engine.shapes $(ARGS)

.PHONY: bench-rules
bench-rules: | cargo ## Measure rules beside cel-rust and zen-engine, compare results with cel-rust, and measure lists (compiles the peers for minutes)
	@cargo run --release --quiet --package scorer-rules --example speed
	@CARGO_TARGET_DIR=target/peers cargo test --release --locked --quiet --manifest-path loadtests/peers/rules/Cargo.toml
	@CARGO_TARGET_DIR=target/peers cargo run --release --locked --quiet --manifest-path loadtests/peers/rules/Cargo.toml

.PHONY: bench-batch
bench-batch: build .build/spark/.packages .build/ray/.packages ## Measure batch scoring on one core, local, in Spark and in Ray, with XGBoost's own ways (as root)
	@'$(RUN)' -m loadtests.batch $(ARGS)

.PHONY: bench-training
bench-training: build ## Measure training on decisions in files, and print the plan for a larger data set (3 minutes)
	@'$(RUN)' -m loadtests.training $(ARGS)

.PHONY: bench-gates
bench-gates: build ## Measure which candidates the release gates fail, and their false-alarm rate (10 minutes on two cores)
	@'$(RUN)' -m loadtests.gates $(ARGS)

.PHONY: bench-overlay
bench-overlay: build ## Measure runs of the overlay on tables of 10 million decisions (20 minutes, 10 GB of disk)
	@'$(RUN)' -m loadtests.overlay $(ARGS)

.PHONY: bench-pages
bench-pages: build ## Measure the page of a checkpoint's metrics over half a year at 1,000 decisions per second (3 minutes)
	@'$(RUN)' -m loadtests.pages $(ARGS)

.PHONY: figures
figures: build ## Write docs/benchmarks.md, the table of README.md and the plots; add a run: make figures ARGS='loadtests/results/A.jsonl'
	@'$(RUN)' -m loadtests.report --publish $(ARGS)

.PHONY: screenshots
screenshots: build ## Take docs/screenshots of a running platform in a browser (Debian: chromium)
	@'$(RUN)' scripts/screenshots.py

.PHONY: proto
proto: $(VENV)/.packages | cargo ## Generate code from the protos (Python, Rust), and the SDK's operations from the REST API
	@'$(RUN)' scripts/gen_protos.py
	@cargo run --locked --quiet --package scorer-proto --example generate
	@'$(RUN)' scripts/gen_sdk.py

# The files contain hashes and no index, so that an installation can use any index.
LOCK := '$(BIN)/uv' pip compile --quiet --python-version 3.11 --universal --generate-hashes --no-header
.PHONY: lock
lock: $(VENV)/.packages ## Pin requirements/*.in again after changing one (UPGRADE=--upgrade moves every pin)
	@cd requirements && for part in serve train platform ship operator dev; do \
		$(LOCK) $(UPGRADE) --overrides overrides.txt $$part.in --output-file $$part.txt; done
	@cd requirements && $(LOCK) $(UPGRADE) --constraints dev.txt build.in --output-file build.txt
	@cd requirements && $(LOCK) $(UPGRADE) --constraints dev.txt --overrides overrides.txt bench.in --output-file bench.txt
	@cd requirements && $(LOCK) $(UPGRADE) --constraints dev.txt --overrides overrides.txt learning.in --output-file learning.txt
	@cd requirements && $(LOCK) $(UPGRADE) --no-deps learning-obp.in --output-file learning-obp.txt
	@cd requirements && for peer in peers-*.in explain.in; do \
		$(LOCK) $(UPGRADE) --overrides overrides.txt $$peer --output-file $${peer%.in}.txt; done
	@cd requirements && for part in spark ray; do \
		$(LOCK) $(UPGRADE) --constraints dev.txt --overrides overrides.txt $$part.in --output-file $$part.txt; done
	@cd requirements && for part in clients mlflow airflow feast rule-peers audit docs wheels; do \
		$(LOCK) $(UPGRADE) $$part.in --output-file $$part.txt; done

.PHONY: clients
clients: $(VENV)/.packages ## Install third-party inference clients into .build/clients, for the tests that use them
	$(call say,'Inference clients')
	@[ -x .build/clients/bin/python ] || '$(BIN)/uv' venv --quiet --python '$(RUN)' .build/clients
	@'$(BIN)/uv' pip sync --python .build/clients/bin/python --require-hashes requirements/clients.txt

# Separate environments for the tests. Serving and training do not install these packages.
.build/%/.packages: requirements/%.txt $(VENV)/.packages
	$(call say,'$* for the tests')
	@'$(BIN)/uv' venv --quiet --clear --python '$(RUN)' .build/$*
	@'$(BIN)/uv' pip sync --quiet --python .build/$*/bin/python --require-hashes requirements/$*.txt
	@touch $@

.PHONY: oidc
oidc: .build/oidc/.packages ## Install an OpenID provider (npm) into .build/oidc, for the sign-in test
.build/oidc/.packages: tests/support/oidc/package.json tests/support/oidc/package-lock.json
	$(call say,'OpenID provider')
	@mkdir -p .build/oidc && cp $^ .build/oidc/
	@cd .build/oidc && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

# Maven verifies the checksums of the repository, and the file of hashes pins the content of every library.
.PHONY: kafka
kafka: .build/kafka/.packages ## Install a Kafka broker (Maven) into .build/kafka, for the tests of scorer ship
.build/kafka/.packages: tests/support/kafka/pom.xml tests/support/kafka/jars.sha256
	$(call say,'Kafka')
	@command -v mvn >/dev/null || { echo "error: mvn not found; install Maven (Debian: apt-get install maven)" >&2; exit 1; }
	@rm -rf .build/kafka && mkdir -p .build/kafka
	@mvn --batch-mode --quiet --strict-checksums --file tests/support/kafka/pom.xml \
		org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies -DoutputDirectory='$(CURDIR)/.build/kafka/libs'
	@cd .build/kafka/libs && sha256sum --check --strict --quiet '$(CURDIR)/tests/support/kafka/jars.sha256'
	@[ "$$(ls .build/kafka/libs | wc -l)" -eq "$$(wc -l < tests/support/kafka/jars.sha256)" ] || \
		{ echo "error: .build/kafka/libs holds other libraries than jars.sha256 lists" >&2; exit 1; }
	@touch $@

# The Go module contains the version and the hashes of everything that the server is built from.
.PHONY: s3
s3: .build/s3/versitygw ## Build an S3-compatible server (Go) into .build/s3, for the tests of scorer ship
.build/s3/versitygw: tests/support/s3/go.mod tests/support/s3/go.sum
	$(call say,'S3-compatible server')
	@command -v go >/dev/null || { echo "error: go not found; install Go 1.26 or newer" >&2; exit 1; }
	@mkdir -p .build/s3
	@cd tests/support/s3 && GOFLAGS='-trimpath -mod=readonly' go build -o '$(CURDIR)/$@' github.com/versity/versitygw/cmd/versitygw

# CEL's specification is a Go module with the cases as files; go.sum has its hash. The program evaluates the cases.
.PHONY: cel-spec
cel-spec: .build/cel-spec/.built ## Install the conformance cases of CEL (Go module) into .build/cel-spec, and build the program that evaluates them
.build/cel-spec/.built: tests/support/cel/go.mod tests/support/cel/go.sum rust/rules/examples/cel.rs $(wildcard rust/rules/src/*.rs) | cargo
	$(call say,'Conformance cases of CEL')
	@command -v go >/dev/null || { echo "error: go not found; install Go 1.26 or newer" >&2; exit 1; }
	@rm -rf .build/cel-spec && mkdir -p .build/cel-spec
	@cd tests/support/cel && export GOFLAGS=-mod=readonly && go mod download && \
		cp -r "$$(go list -m -f '{{.Dir}}' cel.dev/expr)/tests/simple/testdata" '$(CURDIR)/.build/cel-spec/'
	@chmod -R u+w .build/cel-spec
	@cargo build --locked --quiet --example cel
	@cp target/debug/examples/cel .build/cel-spec/evaluator
	@touch $@

# The Go module contains the versions and hashes. CI leaves these tests out, because the build takes 13 minutes of CPU time.
.PHONY: kube
kube: .build/kube/.built ## Build kube-apiserver and kustomize (Go) into .build/kube, for the tests of scorer operator
.build/kube/.built: tests/support/kube/go.mod tests/support/kube/go.sum
	$(call say,'Kubernetes API server')
	@command -v go >/dev/null || { echo "error: go not found; install Go 1.26 or newer" >&2; exit 1; }
	@command -v etcd >/dev/null || { echo "error: etcd not found; install it (Debian: apt-get install etcd-server)" >&2; exit 1; }
	@mkdir -p .build/kube
	@version=$$(sed -n 's#^[[:space:]]*k8s.io/kubernetes \(v[0-9.]*\).*#\1#p' tests/support/kube/go.mod); prefix=k8s.io/component-base/version; \
	minor=$${version#v1.}; minor=$${minor%%.*}; cd tests/support/kube; export GOFLAGS='-trimpath -mod=readonly -buildvcs=false'; \
	nice go build -p 1 -ldflags "-s -w -X $$prefix.gitVersion=$$version -X $$prefix.gitMajor=1 -X $$prefix.gitMinor=$$minor" \
		-o '$(CURDIR)/.build/kube/kube-apiserver' k8s.io/kubernetes/cmd/kube-apiserver; \
	nice go build -p 1 -ldflags '-s -w' -o '$(CURDIR)/.build/kube/kustomize' sigs.k8s.io/kustomize/kustomize/v5
	@touch $@

.PHONY: test-kube
test-kube: build kube ## Test scorer operator against a real kube-apiserver and etcd
	$(call say,'Operator on a Kubernetes API server')
	@'$(RUN)' -m pytest tests/integration/test_operator_kube.py $(ARGS)

.PHONY: mlflow
mlflow: .build/mlflow/.packages ## Install an MLflow server into .build/mlflow, for the tests of the MLflow registry

.PHONY: rule-peers
rule-peers: .build/rule-peers/.packages ## Install zen-engine and pyDMNrules into .build/rule-peers, for the tests of imported and exported rules

.PHONY: feast
feast: .build/feast/.packages ## Install Feast into .build/feast, the peer of loadtests/features_redis.py

.PHONY: airflow
airflow: .build/airflow/.packages ## Install Airflow into .build/airflow, for the test that runs the learning DAG

# The clients for services in other languages. Each is copied into .build and built there, from the checked-in protos.
FOREIGN := go java node
FOREIGN_go := $(addprefix examples/clients/go/,go.mod go.sum generate.sh) $(shell find examples/clients/go -name '*.go' -not -path '*/scorerpb/*')
FOREIGN_java := $(addprefix examples/clients/java/,pom.xml lib.sha256) $(shell find examples/clients/java/src -name '*.java')
FOREIGN_node := $(addprefix examples/clients/node/,package.json package-lock.json) $(wildcard examples/clients/node/*.js)
SCORING_PROTO := protos/scorer/v1/scoring.proto
need = @command -v $(1) >/dev/null || { echo "error: $(1) not found; install $(2)" >&2; exit 1; }
copied = rm -rf .build/clients-$(1) && mkdir -p .build/clients-$(1) && cd examples/clients/$(1) && \
	cp --parents $(patsubst examples/clients/$(1)/%,%,$(FOREIGN_$(1))) '$(CURDIR)/.build/clients-$(1)/'

.PHONY: foreign-clients
foreign-clients: $(FOREIGN:%=.build/clients-%/.built) ## Build the clients for Go, Java and Node (examples/clients) into .build

.build/clients-go/.built: $(FOREIGN_go) $(SCORING_PROTO)
	$(call say,'Client for Go')
	$(call need,go,Go 1.26 or newer)
	$(call need,protoc,protobuf-compiler)
	@$(call copied,go)
	@cd .build/clients-go && export PROTOS='$(CURDIR)/protos' GOFLAGS='-trimpath -mod=readonly -buildvcs=false' && \
		./generate.sh && go vet ./... && go build ./cmd/checkout
	@touch $@

# Maven has no lock file with hashes: the libraries are compared with the list beside the sources.
.build/clients-java/.built: $(FOREIGN_java) $(SCORING_PROTO)
	$(call say,'Client for Java')
	$(call need,mvn,maven)
	$(call need,javac,default-jdk-headless)
	@$(call copied,java)
	@cd .build/clients-java && mvn --batch-mode --quiet --strict-checksums -Dprotos='$(CURDIR)/protos' process-classes
	@cd .build/clients-java/target/lib && sha256sum --check --quiet ../../lib.sha256 && \
		{ [ "$$(ls | wc -l)" -eq "$$(wc -l <../../lib.sha256)" ] || { \
		echo "error: target/lib has other libraries than examples/clients/java/lib.sha256; compare pom.xml" >&2; exit 1; }; }
	@touch $@

.build/clients-node/.built: $(FOREIGN_node) $(SCORING_PROTO)
	$(call say,'Client for Node')
	$(call need,npm,npm)
	@$(call copied,node)
	@cd .build/clients-node && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

.PHONY: spark
spark: .build/spark/.packages ## Install PySpark into .build/spark, for the tests of batch scoring and training (Java 17)

# Ray listens on all interfaces. The test runs it in a network namespace, which needs root, and CI leaves it out.
.PHONY: test-ray
test-ray: build .build/ray/.packages ## Install Ray into .build/ray, and test batch scoring and training in Ray (as root)
	$(call say,'Batch scoring and training in Ray')
	@'$(RUN)' -m pytest tests/integration/test_batch_engines.py tests/integration/test_training_engines.py $(ARGS)

# Jaeger has about 200 modules and takes minutes to build, so CI leaves it out. Its Go module contains their versions and hashes.
.PHONY: test-jaeger
test-jaeger: build .build/jaeger/all-in-one ## Build Jaeger (Go) into .build/jaeger, and look at traces of a server in it
	$(call say,'Traces in Jaeger')
	@'$(RUN)' -m pytest tests/integration/test_tracing.py $(ARGS)

.build/jaeger/all-in-one: tests/support/jaeger/go.mod tests/support/jaeger/go.sum
	@command -v go >/dev/null || { echo "error: go not found; install Go 1.26 or newer" >&2; exit 1; }
	@mkdir -p .build/jaeger
	@cd tests/support/jaeger && GOFLAGS='-trimpath -mod=readonly -buildvcs=false' go build -o '$(CURDIR)/$@' github.com/jaegertracing/jaeger/cmd/all-in-one

# Third-party programs that check HTTP/2 and gRPC servers, and the test services that some of them call.
# The Go module contains the versions and hashes of the programs.
.PHONY: conformance-tools
conformance-tools: | cargo ## Install h2spec, gRPC's interop client, connectconformance, ghz, grpcurl and test services into .build/bin
	$(call say,'Conformance tools')
	@command -v go >/dev/null || { echo "error: go not found; install Go 1.26 or newer" >&2; exit 1; }
	@mkdir -p .build/bin
	@cd tests/conformance/tools && for program in $$(go tool | grep /); do \
		name=$$(basename "$$program"); [ "$$name" = client ] && name=grpc-interop-client; \
		GOFLAGS='-trimpath -mod=readonly' go build -o '$(CURDIR)/.build/bin/'"$$name" "$$program"; done
	@cargo build --locked --quiet --example interop --example connectrpc
	@for service in interop connectrpc; do cp "target/debug/examples/$$service" ".build/bin/$$service-server"; done

.PHONY: docs
docs: .build/docs/.packages ## Build the documentation site into .build/site; broken links are errors
	$(call say,'Documentation site')
	@'.build/docs/bin/mkdocs' build --quiet --clean

.PHONY: audit
audit: .build/audit/.packages | cargo ## Check advisories, licences and sources of all dependencies; offline: make audit ADVISORY_DB=PATH
	@code=0; .build/audit/bin/python scripts/audit.py || code=$$?; \
	[ $$code -eq 0 ] || { [ $$code -eq 3 ] && [ -z '$(STRICT)' ]; }

.PHONY: sbom
sbom: .build/audit/.packages | cargo ## Write SBOMs of the wheels and the images (CycloneDX) into target/sbom
	@.build/audit/bin/python scripts/sbom.py

.PHONY: wheels
wheels: build .build/wheels/.packages | cargo ## Build wheels for x86-64 and AArch64 into target/wheels, and test each in empty environments
	@'$(RUN)' scripts/wheels.py $(ARGS)

.PHONY: reproducible
reproducible: .build/wheels/.packages | cargo ## Build the wheel twice, in two directories, and compare the bytes
	@'$(RUN)' scripts/reproducible.py

.PHONY: image
image: build ## Build the serving image with buildah and test its entry point; after `make wheels` (Debian: buildah debootstrap bubblewrap)
	@code=0; '$(RUN)' scripts/image.py $(ARGS) || code=$$?; [ $$code -eq 0 ] || { [ $$code -eq 3 ] && [ -z '$(STRICT)' ]; }

.PHONY: images
images: ## Build and test the images of server, platform, operator and shipper, each with its own packages
	@$(MAKE) image ARGS=--all

.PHONY: wheel
wheel: $(VENV)/.packages | cargo ## Build the wheel into target/wheels
	@'$(BIN)/maturin' build --release --locked

.PHONY: clean
clean: ## Remove all build products and .venv
	@rm -rf .venv .build target $(EXTENSION) .pytest_cache .mypy_cache .ruff_cache .hypothesis
