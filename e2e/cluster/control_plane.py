"""The control plane of a cluster: its files, its processes, its readiness."""

import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import components, configs, process
from e2e.cluster.api import Api
from e2e.cluster.namespaces import Namespaces
from e2e.cluster.network import API_SERVICE, Network
from e2e.cluster.paths import Layout
from e2e.cluster.pki import Authority, Pair, service_account_keys
from e2e.cluster.timings import Timings
from e2e.cluster.waiting import wait_for_process

USERS = {
    "kube-controller-manager": ("system:kube-controller-manager", None),
    "kube-scheduler": ("system:kube-scheduler", None),
    "kube-proxy": ("system:kube-proxy", None),
    "coredns": ("coredns", "system:masters"),
}
"""Component → its user and group; each has a kubeconfig of its own."""


@dataclass(frozen=True)
class ControlPlane:
    """etcd, API server, controllers, scheduler, proxy and DNS, all in one control group."""

    name: str
    layout: Layout
    network: Network
    namespaces: Namespaces
    timings: Timings
    group: str

    @property
    def api(self) -> Api:
        """A client with the administrator's rights."""
        pki = self.layout.pki
        return Api(self.network, Pair(pki / "ca.crt", pki / "ca.key"), Pair(pki / "admin.crt", pki / "admin.key"))

    def write_files(self) -> None:
        """Writes the control plane's keys, certificates, kubeconfigs and configuration files, and those that all nodes share."""
        layout, node, authority = self.layout, self.network.node, Authority(self.layout.pki)
        service_account_keys(layout.pki)
        inside = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", API_SERVICE)
        authority.issue("kube-apiserver", "kube-apiserver", names=("localhost", "127.0.0.1", node, *inside))
        authority.issue("front-proxy", "front-proxy")
        admin = authority.issue("admin", "admin", "system:masters")
        layout.kubeconfig.touch(mode=0o600)
        layout.kubeconfig.write_text(configs.kubeconfig(self.name, self.network.api, authority.pair, admin))
        for component, (user, group) in USERS.items():
            pair = authority.issue(component, user, group)
            text = configs.kubeconfig(self.name, self.network.api, authority.pair, pair)
            (layout.conf / component).write_text(text)
        (layout.conf / "cni" / "10-pods.conflist").write_text(configs.cni(layout, self.network))
        (layout.conf / "kube-proxy.json").write_text(configs.proxy(layout, self.network))
        (layout.conf / "Corefile").write_text(configs.corefile(layout, self.network))
        (layout.conf / "resolv.conf").touch()  # an empty one: the host's search domains must not reach pods

    def start(self) -> None:
        """Starts etcd and the API server, and once that serves, the other components, for which it doesn't wait."""
        for component in components.FIRST:
            self._spawn(component)
        self._await("kube-apiserver")
        for component in self._commands:
            if component not in components.FIRST:
                self._spawn(component)

    def await_ready(self) -> None:
        """Waits until namespace `default` takes pods and CoreDNS is ready."""
        self._await("kube-controller-manager")
        self._await("coredns")

    def signal(self, component: str, number: signal.Signals) -> None:
        """Sends a signal to a component; SIGSTOP freezes it where it is until SIGCONT."""
        for pid in self._processes(component):
            os.kill(pid, number)

    def restart(self, component: str) -> None:
        """Kills a component and starts it again, without waiting until it serves."""
        for pid in self._processes(component):
            process.kill(pid)
        self._spawn(component)

    @contextmanager
    def stopped(self) -> Iterator[Path]:
        """Kills all components, yields the folder of etcd's data, and starts them again after the block."""
        for component in self._commands:
            for pid in self._processes(component):
                process.kill(pid)
        yield self.layout.etcd
        self.start()

    def _processes(self, component: str) -> list[int]:
        return process.find(self._commands[component], self.group)

    @property
    def _commands(self) -> dict[str, list[str]]:
        return components.control_plane(self.layout, self.network, self.timings)

    def _spawn(self, component: str) -> None:
        self.namespaces.spawn(self._commands[component], self.layout.logs / f"{component}.log", self.group)

    def _await(self, component: str) -> None:
        ready = {
            "kube-apiserver": self.api.serves,
            "kube-controller-manager": self._takes_pods,
            "coredns": self._resolves_names,
        }
        wait_for_process(
            ready[component],
            alive=lambda: bool(self._processes(component)),
            log=self.layout.logs / f"{component}.log",
        )

    def _takes_pods(self) -> bool:
        """Whether namespace `default` takes pods: it refuses them until it has its service account."""
        return self.api.get("/api/v1/namespaces/default/serviceaccounts/default") is not None

    def _resolves_names(self) -> bool:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://{self.network.node}:8181/ready", timeout=2):
                return True
        except urllib.error.URLError:
            return False
