# The verifier, and 'speculant build'. Build from the root of the repository:
#   docker build -f deploy/verifier.Dockerfile -t speculant-verifier .
#   docker build -f deploy/verifier.Dockerfile -t speculant-verifier:cpu --build-arg DEVICE=cpu .
# PIP_INDEX_OPTIONS goes to pip as it is, such as --extra-index-url with the address of torch's own packages for CPUs:
# those of the usual index bring several gigabytes of CUDA.
ARG DEVICE=cuda
ARG CUDA_IMAGE=nvidia/cuda:13.0.2-base-ubuntu24.04
ARG PYTHON_IMAGE=python:3.11-slim

FROM ${PYTHON_IMAGE} AS cpu

FROM ${CUDA_IMAGE} AS cuda
# Triton, with which torch and transformers compile kernels at run time, needs a C compiler and Python's headers.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

# hadolint ignore=DL3006
FROM ${DEVICE} AS build
ARG PIP_INDEX_OPTIONS=""
WORKDIR /src
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/speculant
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY shared shared
COPY drafter_server drafter_server
COPY verifier_client verifier_client
# hadolint ignore=SC2086
RUN /opt/speculant/bin/pip install --no-cache-dir --disable-pip-version-check $PIP_INDEX_OPTIONS -c constraints.txt \
    ".[service,build]"
RUN ln -s /opt/speculant/lib/python3*/site-packages/speculant_verifier/demo/model /opt/speculant/demo-model

# hadolint ignore=DL3006
FROM ${DEVICE}
# The drafter's user: a Unix socket is for its own user alone.
RUN groupadd --gid 10001 speculant \
    && useradd --uid 10001 --gid 10001 --home-dir /tmp --no-create-home --shell /usr/sbin/nologin speculant \
    && install -d -m 0700 -o 10001 -g 10001 /run/speculant /run/verifier /var/cache/speculant /var/lib/speculant \
    && install -d -o 10001 -g 10001 /graphs /models
COPY --from=build /opt/speculant /opt/speculant
ENV PATH=/opt/speculant/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    XDG_CACHE_HOME=/var/cache/speculant \
    TRITON_CACHE_DIR=/var/cache/speculant/triton \
    TORCHINDUCTOR_CACHE_DIR=/var/cache/speculant/inductor \
    HF_HOME=/models \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001:10001
WORKDIR /var/lib/speculant
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=300s CMD ["speculant", "probe", "unix:///run/verifier/verifier.sock"]
ENTRYPOINT ["speculant"]
CMD ["verifier", "--listen", "unix:///run/verifier/verifier.sock", "--http", "0.0.0.0:8000", "--drafter", "unix:///run/speculant/drafter.sock"]
