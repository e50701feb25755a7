# `runtime-host` with the runtime of one version, which pods import instead of the one in the host's environment.
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
COPY crds /opt/longboat/crds
COPY runtime /opt/longboat/runtime
ENV PYTHONPATH=/opt/longboat/crds:/opt/longboat/runtime
