"""Contents of the configuration files (JSON where YAML is asked for: every JSON text is YAML)."""

import base64
import json

from e2e.cluster.images import pause
from e2e.cluster.network import Network
from e2e.cluster.paths import Layout, NodeLayout
from e2e.cluster.pki import Pair
from e2e.cluster.timings import Timings


def kubeconfig(cluster: str, server: str, authority: Pair, user: Pair) -> str:
    """Returns a kubeconfig with its certificates and key embedded."""

    def data(pem: bytes) -> str:
        return base64.b64encode(pem).decode()

    context = f"longboat-{cluster}"
    return _json(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": context,
                    "cluster": {
                        "server": server,
                        "certificate-authority-data": data(authority.certificate.read_bytes()),
                    },
                }
            ],
            "users": [
                {
                    "name": context,
                    "user": {
                        "client-certificate-data": data(user.certificate.read_bytes()),
                        "client-key-data": data(user.key.read_bytes()),
                    },
                }
            ],
            "contexts": [{"name": context, "context": {"cluster": context, "user": context}}],
            "current-context": context,
        }
    )


def containerd(node: NodeLayout) -> str:
    """Returns containerd's configuration. Its state and socket are the node's own; CNI configuration and registries are the cluster's."""
    return f"""version = 2
root = "{node.root}/containerd/root"
state = "{node.root}/containerd/state"
[grpc]
  address = "{node.socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{node.root}/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  sandbox_image = "{pause.NAME}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{node.cluster.conf}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "{node.cluster.registries}"
"""


def kubelet(node: NodeLayout, network: Network, timings: Timings, offset: int, group: str) -> str:
    """Returns the kubelet's configuration; nodes share an address, so each has ports of its own, by its `offset`."""
    pki = node.cluster.pki
    return _json(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(pki / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(pki / f"{node.name}.crt"),
            "tlsPrivateKeyFile": str(pki / f"{node.name}.key"),
            "port": 10250 + offset,
            "healthzPort": 10350 + offset,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": group,
            "failCgroupV1": False,
            "failSwapOn": False,
            "containerRuntimeEndpoint": f"unix://{node.socket}",
            "clusterDNS": [network.node],
            "clusterDomain": "cluster.local",
            "resolvConf": str(node.cluster.conf / "resolv.conf"),
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "podLogsDir": str(node.pod_logs),
            "nodeStatusUpdateFrequency": f"{timings.node_status_update}s",
            "nodeLeaseDurationSeconds": timings.node_lease,
            "crashLoopBackOff": {"maxContainerRestartPeriod": f"{timings.max_restart_backoff}s"},
        }
    )


def proxy(layout: Layout, network: Network) -> str:
    """Returns kube-proxy's configuration."""
    return _json(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(layout.conf / "kube-proxy")},
            "mode": "iptables",
            "clusterCIDR": network.pods,
            "hostnameOverride": "node0",
            "conntrack": {"maxPerCore": 0, "min": 0},
            "metricsBindAddress": "127.0.0.1:10249",
        }
    )


def cni(layout: Layout, network: Network) -> str:
    """Returns the configuration of the pod network: all nodes share one bridge and one folder that records addresses in use."""
    return _json(
        {
            "cniVersion": "1.0.0",
            "name": "pods",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": "cni0",
                    "isGateway": True,
                    "ipMasq": True,
                    "hairpinMode": True,
                    "ipam": {
                        "type": "host-local",
                        "dataDir": str(layout.root / "ipam"),
                        "ranges": [[{"subnet": network.pods}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                },
                {"type": "portmap", "capabilities": {"portMappings": True}},
            ],
        }
    )


def corefile(layout: Layout, network: Network) -> str:
    """Returns CoreDNS' configuration: it resolves names and addresses of the cluster, and fails at once for all others."""
    return f""".:53 {{
  bind {network.node}
  errors
  ready {network.node}:8181
  kubernetes cluster.local in-addr.arpa {{
    kubeconfig {layout.conf}/coredns
    pods insecure
    ttl 1
  }}
  cache 1
}}
"""


def _json(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"
