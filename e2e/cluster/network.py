"""A cluster's network: one network namespace, joined to the host by a pair of virtual Ethernet devices.

The host reaches the nodes' address and the pods, but no service address. Without a default route, pods reach no further than the host.
"""

import ipaddress
import json
from dataclasses import dataclass

from e2e.cluster.errors import ClusterError, CommandError
from e2e.cluster.shell import run

SERVICES = "10.96.0.0/16"
API_SERVICE = "10.96.0.1"
INDEXES = range(1, 251)


@dataclass(frozen=True)
class Network:
    """Addresses of the cluster with an index; indexes are unique on a machine."""

    index: int

    @property
    def link(self) -> str:
        """The host's end of the pair; its name claims the index."""
        return f"longboat{self.index}"

    @property
    def subnet(self) -> str:
        """The subnet between host and cluster."""
        return f"10.97.{self.index}.0/30"

    @property
    def host(self) -> str:
        """The host's address, by which components reach a webhook or an operator run on the host."""
        return f"10.97.{self.index}.1"

    @property
    def node(self) -> str:
        """The address of API server, DNS and all nodes."""
        return f"10.97.{self.index}.2"

    @property
    def pods(self) -> str:
        """The pods' subnet: one bridge for all nodes."""
        return f"10.244.{self.index}.0/24"

    @property
    def api(self) -> str:
        """The API server's URL, as seen from the host and from inside."""
        return f"https://{self.node}:6443"


def free_indexes(taken: list[str]) -> list[int]:
    """Lists the indexes whose subnets overlap none of the IPv4 subnets in `taken`, lowest first; a default route doesn't count."""
    others = [ipaddress.ip_network(subnet, strict=False) for subnet in taken]
    others = [subnet for subnet in others if subnet.version == 4 and subnet.prefixlen > 0]

    def free(index: int) -> bool:
        network = Network(index)
        own_subnets = [ipaddress.ip_network(subnet) for subnet in (network.subnet, network.pods)]
        return not any(our.overlaps(other) for our in own_subnets for other in others)

    return [index for index in INDEXES if free(index)]


def claim(owner: str) -> Network:
    """Claims a free index by creating its host link, of whose name the kernel allows only one; raises ClusterError if none is free."""
    routes = json.loads(run(["ip", "-json", "route", "show", "table", "all", "type", "unicast"]) or "[]")
    addresses = json.loads(run(["ip", "-json", "-4", "address"]) or "[]")
    taken = [route["dst"] for route in routes if route["dst"] != "default"]
    taken += [f"{info['local']}/{info['prefixlen']}" for link in addresses for info in link["addr_info"]]
    for index in free_indexes(taken):
        network = Network(index)
        try:
            run(["ip", "link", "add", network.link, "type", "veth", "peer", "name", f"{network.link}p"])
        except CommandError as error:
            if "File exists" not in error.stderr:
                raise
            continue
        run(["ip", "link", "set", network.link, "alias", owner])
        return network
    raise ClusterError("no free network: every subnet 10.97.1.0/30 to 10.97.250.0/30 is in use; take a cluster down")


def connect(network: Network, pid: int) -> None:
    """Moves the other end of the claimed pair into the network namespace of process `pid` and configures both."""
    run(["ip", "link", "set", f"{network.link}p", "netns", str(pid), "name", "eth0"])
    run(["ip", "address", "add", f"{network.host}/30", "dev", network.link])
    run(["ip", "link", "set", network.link, "up"])
    run(["ip", "route", "add", network.pods, "via", network.node, "dev", network.link])
    inside = ["nsenter", "--target", str(pid), "--net"]
    run([*inside, "ip", "link", "set", "lo", "up"])
    run([*inside, "ip", "address", "add", f"{network.node}/30", "dev", "eth0"])
    run([*inside, "ip", "link", "set", "eth0", "up"])
    # A packet to a service address needs a route before kube-proxy's rules can redirect it.
    run([*inside, "ip", "route", "add", SERVICES, "dev", "eth0"])
    settings = {
        "net/ipv4/ip_forward": "1",
        "net/ipv4/conf/all/route_localnet": "1",
        "net/bridge/bridge-nf-call-iptables": "1",
    }
    script = "; ".join(f"echo {value} > /proc/sys/{key}" for key, value in settings.items())
    run([*inside, "sh", "-ec", script])


def release(owner: str) -> None:
    """Removes the owner's host links; they also go, a little later, with the network namespace of their other ends."""
    for link in json.loads(run(["ip", "-json", "link"])):
        if link.get("ifalias") == owner:
            try:
                run(["ip", "link", "delete", link["ifname"]])
            except CommandError as error:
                if not any(gone in error.stderr for gone in ("Cannot find device", "No such device")):
                    raise
