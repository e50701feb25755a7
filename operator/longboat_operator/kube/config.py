"""Finds the API server, a proxy to it and our credentials, from a kubeconfig file or the pod's service account."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from urllib.request import getproxies, proxy_bypass

from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config
from yaml import YAMLError
from yarl import URL

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class ConfigurationError(Exception):
    """Says why the operator can't run as configured, and what to do."""


async def load_configuration(kubeconfig: Path | None) -> Configuration:
    """Loads the given kubeconfig; without one, the service account in a pod, or the user's default kubeconfig elsewhere.

    In a pod no proxy is used, whatever the environment says: proxies are for what lies outside the cluster. Elsewhere the kubeconfig
    (`proxy-url`) or else the environment may name one.

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
            configuration.proxy = configuration.proxy or proxy_in_environment(configuration.host)
    # The last three are what the client raises for a malformed file.
    except (ConfigException, OSError, TypeError, ValueError, YAMLError) as error:
        where = "the pod's service account" if in_cluster else str(kubeconfig or "the default kubeconfig")
        message = f"can't reach the API server by {where}: {error}; give --kubeconfig FILE or run in a pod with a token"
        raise ConfigurationError(message) from error
    return configuration


def proxy_in_environment(host: str) -> str | None:
    """Returns the proxy that HTTPS_PROXY (HTTP_PROXY for an http:// server) names; None if there is none or NO_PROXY exempts the server.

    NO_PROXY may contain hosts, also with ports, domains and, as in kubectl, address blocks (10.96.0.0/12).
    """
    url = URL(host)
    if url.host is None or proxy_bypass(f"{url.host}:{url.port}") or _in_exempt_block(url.host):
        return None
    return getproxies().get(url.scheme)


def _in_exempt_block(host: str) -> bool:
    """Whether the host is an address in a block that NO_PROXY contains; `proxy_bypass` knows no blocks."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    for entry in getproxies().get("no", "").split(","):
        try:
            if address in ipaddress.ip_network(entry.strip(), strict=False):
                return True
        except ValueError:
            continue
    return False


def own_namespace() -> str | None:
    """Returns the namespace that is mounted with the pod's service account; None if none is, as outside a pod."""
    return _NAMESPACE_FILE.read_text().strip() if _NAMESPACE_FILE.is_file() else None
