# The drafter sidecar: no torch, no GPU. Build from the root of the repository:
#   docker build -f deploy/drafter.Dockerfile -t speculant-drafter .
ARG PYTHON_IMAGE=python:3.11-slim

FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/speculant
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY shared shared
COPY drafter_server drafter_server
COPY verifier_client verifier_client
RUN /opt/speculant/bin/pip install --no-cache-dir --disable-pip-version-check -c constraints.txt ".[drafter]"

FROM ${PYTHON_IMAGE}
# A fixed number, so that the verifier's container can be the same user: a Unix socket is for its own user alone.
RUN groupadd --gid 10001 speculant \
    && useradd --uid 10001 --gid 10001 --home-dir /tmp --no-create-home --shell /usr/sbin/nologin speculant \
    && install -d -m 0700 -o 10001 -g 10001 /run/speculant /var/cache/speculant /var/lib/speculant \
    && install -d -o 10001 -g 10001 /graphs
COPY --from=build /opt/speculant /opt/speculant
ENV PATH=/opt/speculant/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /var/lib/speculant
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s CMD ["speculant", "probe", "unix:///run/speculant/drafter.sock"]
ENTRYPOINT ["speculant"]
CMD ["drafter", "--listen", "unix:///run/speculant/drafter.sock", "--graph", "/graphs/graph.pkl"]
