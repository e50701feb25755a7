"""The kinds the operator touches and their paths. Static: no discovery. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from longboat_crds.base import GROUP, VERSION


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind in one version, as it is reached over HTTP."""

    kind: str
    plural: str
    group: str = ""
    version: str = "v1"
    namespaced: bool = True
    fields: str = ""
    """Field selector of the objects that are listed and watched; empty: all."""

    @property
    def api_version(self) -> str:
        """`apiVersion` of its manifests."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Returns the path below the server's address; without `name`, that of the collection.

        `namespace` counts only for a namespaced kind: without it, the collection is that of all namespaces.
        """
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, subresource) if part]
        return "/".join(parts)


RL_JOB = Resource("RLJob", "rljobs", GROUP, VERSION)
RL_RUNTIME = Resource("RLRuntime", "rlruntimes", GROUP, VERSION)
CLUSTER_RL_RUNTIME = Resource("ClusterRLRuntime", "clusterrlruntimes", GROUP, VERSION, namespaced=False)
POD = Resource("Pod", "pods")
SERVICE = Resource("Service", "services")
SERVICE_ACCOUNT = Resource("ServiceAccount", "serviceaccounts")
SECRET = Resource("Secret", "secrets")
CLAIM = Resource("PersistentVolumeClaim", "persistentvolumeclaims")
ROLE = Resource("Role", "roles", "rbac.authorization.k8s.io")
ROLE_BINDING = Resource("RoleBinding", "rolebindings", "rbac.authorization.k8s.io")
NETWORK_POLICY = Resource("NetworkPolicy", "networkpolicies", "networking.k8s.io")
CONTROLLER_REVISION = Resource("ControllerRevision", "controllerrevisions", "apps")
DISRUPTION_BUDGET = Resource("PodDisruptionBudget", "poddisruptionbudgets", "policy")
# Only cordoned nodes are watched: kubelets update the status of every node all the time.
CORDONED_NODE = Resource("Node", "nodes", namespaced=False, fields="spec.unschedulable=true")
EVENT = Resource("Event", "events")
LEASE = Resource("Lease", "leases", "coordination.k8s.io")

# What a job is made of and the operator watches. Secrets are created and never read.
CHILDREN = (
    POD,
    SERVICE,
    SERVICE_ACCOUNT,
    ROLE,
    ROLE_BINDING,
    NETWORK_POLICY,
    CLAIM,
    CONTROLLER_REVISION,
    DISRUPTION_BUDGET,
)

BY_KIND: Mapping[str, Resource] = {
    resource.kind: resource for resource in (*CHILDREN, SECRET, RL_JOB, RL_RUNTIME, CLUSTER_RL_RUNTIME, EVENT, LEASE)
}
