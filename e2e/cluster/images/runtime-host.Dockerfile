# What the runtime needs of a system, without its Python environment: that comes from the host, read-only.
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
RUN apt-get update && apt-get install --yes --no-install-recommends libnuma1 && \
    rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin
RUN groupadd --gid 10001 longboat && useradd --uid 10001 --gid 10001 --create-home longboat && \
    groupadd --gid 10002 grader && useradd --uid 10002 --gid 10002 --no-create-home grader && \
    useradd --uid 10003 --gid 10001 --no-create-home ray-head
# The host's Python may be installed below /root: let others pass through.
RUN chmod 711 /root
USER 10001:10001
