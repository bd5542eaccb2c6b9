# The drafter sidecar: no torch, no GPU. Build from the root of the repository:
#   docker build -f deploy/drafter.Dockerfile -t speculant-drafter .
ARG PYTHON_IMAGE=python:3.11-slim

FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
RUN python3 -m venv /opt/speculant
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY shared shared
COPY drafter_server drafter_server
COPY verifier_client verifier_client
RUN /opt/speculant/bin/pip install --no-cache-dir --disable-pip-version-check -c constraints.txt ".[drafter]"
# Kernels for any processor of this architecture: the machine that builds is not the one that runs.
ENV NUMBA_CPU_NAME=generic
COPY deploy/compile_kernels.py ./
RUN NUMBA_CACHE_DIR=/opt/speculant/kernels /opt/speculant/bin/python compile_kernels.py
COPY deploy/entrypoint.sh /opt/speculant/bin/speculant-entrypoint

FROM ${PYTHON_IMAGE}
# A fixed number, so that the verifier's container can be the same user: a Unix socket is for its own user alone.
RUN groupadd --gid 10001 speculant \
    && useradd --uid 10001 --gid 10001 --home-dir /tmp --no-create-home --shell /usr/sbin/nologin speculant \
    && install -d -m 0700 -o 10001 -g 10001 /run/speculant /var/cache/speculant /var/lib/speculant \
    && install -d -o 10001 -g 10001 /graphs
COPY --from=build /opt/speculant /opt/speculant
ENV PATH=/opt/speculant/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    NUMBA_CPU_NAME=generic \
    NUMBA_CACHE_DIR=/var/cache/speculant/kernels
USER 10001:10001
WORKDIR /var/lib/speculant
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s CMD ["speculant", "probe", "unix:///run/speculant/drafter.sock"]
ENTRYPOINT ["speculant-entrypoint"]
CMD ["drafter", "--listen", "unix:///run/speculant/drafter.sock", "--graph", "/graphs/graph.pkl"]
