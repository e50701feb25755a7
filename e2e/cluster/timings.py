"""Sets how soon a cluster notices lost nodes and crashed containers."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Timings:
    """Times in seconds; see the kubelet's configuration and the node controller's flags."""

    node_status_update: int
    node_lease: int
    node_monitor_period: int
    node_monitor_grace: int
    max_restart_backoff: int


DEFAULT = Timings(
    node_status_update=10, node_lease=40, node_monitor_period=5, node_monitor_grace=50, max_restart_backoff=300
)
"""What Kubernetes ships with: a lost node is noticed in about 50 s."""

QUICK = Timings(node_status_update=1, node_lease=4, node_monitor_period=1, node_monitor_grace=5, max_restart_backoff=2)
"""For tests: a lost node is noticed in about 5 s, a crashing container comes back every 2 to 3 s."""

PATIENT = replace(QUICK, node_monitor_grace=1200)
"""For tests that freeze a kubelet: its node is not lost meanwhile."""
