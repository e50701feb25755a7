"""Finds the API server and our credentials there, from a kubeconfig file or the pod's service account."""

from __future__ import annotations

import os
from pathlib import Path

from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config
from yaml import YAMLError

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class ConfigurationError(Exception):
    """Says why the operator can't run as configured, and what to do."""


async def load_configuration(kubeconfig: Path | None) -> Configuration:
    """Loads the given kubeconfig; without one, the service account in a pod, or the user's default kubeconfig elsewhere.

    Raises:
        ConfigurationError: the configuration is missing or can't be read.
    """
    configuration = Configuration()
    in_cluster = kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ
    try:
        if in_cluster:
            load_incluster_config(configuration)
        else:
            path = str(kubeconfig) if kubeconfig else None
            await load_kube_config(config_file=path, client_configuration=configuration, persist_config=False)
    # The last three are what the client raises for a malformed file.
    except (ConfigException, OSError, TypeError, ValueError, YAMLError) as error:
        where = "the pod's service account" if in_cluster else str(kubeconfig or "the default kubeconfig")
        message = f"can't reach the API server by {where}: {error}; give --kubeconfig FILE or run in a pod with a token"
        raise ConfigurationError(message) from error
    return configuration


def own_namespace() -> str | None:
    """Returns the namespace that is mounted with the pod's service account; None if none is, as outside a pod."""
    return _NAMESPACE_FILE.read_text().strip() if _NAMESPACE_FILE.is_file() else None
