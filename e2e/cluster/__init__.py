"""A real Kubernetes on one machine, without Docker: each cluster lives in namespaces of its own and leaves nothing."""

from e2e.cluster.cluster import Cluster
from e2e.cluster.errors import ClusterError
from e2e.cluster.timings import DEFAULT, QUICK, Timings

__all__ = ["DEFAULT", "QUICK", "Cluster", "ClusterError", "Timings"]
