"""Command lines of the control plane."""

from e2e.cluster.binaries import KUBEBOX
from e2e.cluster.network import SERVICES, Network
from e2e.cluster.paths import Layout
from e2e.cluster.timings import Timings

ETCD_URL = "http://127.0.0.1:2379"
FIRST = ("etcd", "kube-apiserver")
"""The components that the others wait for."""


def control_plane(layout: Layout, network: Network, timings: Timings) -> dict[str, list[str]]:
    """Returns the command line of each component by its name."""
    return {
        "etcd": _etcd(layout),
        "kube-apiserver": _apiserver(layout, network),
        "kube-controller-manager": _controller_manager(layout, timings),
        "kube-scheduler": [
            str(KUBEBOX.path),
            "kube-scheduler",
            f"--kubeconfig={layout.conf}/kube-scheduler",
            "--leader-elect=false",
        ],
        "kube-proxy": [str(KUBEBOX.path), "kube-proxy", f"--config={layout.conf}/kube-proxy.json"],
        "coredns": [str(KUBEBOX.path), "coredns", "-conf", str(layout.conf / "Corefile")],
    }


def _etcd(layout: Layout) -> list[str]:
    return [
        str(KUBEBOX.path),
        "etcd",
        f"--data-dir={layout.etcd}",
        f"--listen-client-urls={ETCD_URL}",
        f"--advertise-client-urls={ETCD_URL}",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--unsafe-no-fsync",  # the data dies with the cluster
        "--log-level=warn",
    ]


def _apiserver(layout: Layout, network: Network) -> list[str]:
    pki = layout.pki
    return [
        str(KUBEBOX.path),
        "kube-apiserver",
        f"--etcd-servers={ETCD_URL}",
        "--bind-address=0.0.0.0",
        "--secure-port=6443",
        f"--advertise-address={network.node}",
        f"--cert-dir={pki}",
        f"--tls-cert-file={pki}/kube-apiserver.crt",
        f"--tls-private-key-file={pki}/kube-apiserver.key",
        f"--client-ca-file={pki}/ca.crt",
        f"--service-account-key-file={pki}/service-accounts.pub",
        f"--service-account-signing-key-file={pki}/service-accounts.key",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--service-cluster-ip-range={SERVICES}",
        "--allow-privileged",
        "--kubelet-preferred-address-types=InternalIP",  # node names are in no DNS
        f"--kubelet-client-certificate={pki}/admin.crt",
        f"--kubelet-client-key={pki}/admin.key",
        f"--kubelet-certificate-authority={pki}/ca.crt",
        # Aggregated APIs, such as metrics, trust requests that carry these headers and the front proxy's certificate.
        f"--requestheader-client-ca-file={pki}/ca.crt",
        "--requestheader-allowed-names=front-proxy",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-username-headers=X-Remote-User",
        f"--proxy-client-cert-file={pki}/front-proxy.crt",
        f"--proxy-client-key-file={pki}/front-proxy.key",
    ]


def _controller_manager(layout: Layout, timings: Timings) -> list[str]:
    pki = layout.pki
    return [
        str(KUBEBOX.path),
        "kube-controller-manager",
        f"--kubeconfig={layout.conf}/kube-controller-manager",
        f"--service-account-private-key-file={pki}/service-accounts.key",
        f"--root-ca-file={pki}/ca.crt",
        "--use-service-account-credentials",
        "--leader-elect=false",
        f"--cluster-signing-cert-file={pki}/ca.crt",
        f"--cluster-signing-key-file={pki}/ca.key",
        "--allocate-node-cidrs=false",
        f"--node-monitor-period={timings.node_monitor_period}s",
        f"--node-monitor-grace-period={timings.node_monitor_grace}s",
        # The default of 20 requests a second makes its start-up, with one account a controller, 4 s longer.
        "--kube-api-qps=200",
        "--kube-api-burst=400",
    ]
