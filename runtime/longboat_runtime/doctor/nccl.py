"""The paths that NCCL would take between GPUs of this pod, and to other pods, as far as they can be known without starting it.

NCCL reads and writes memory of other GPUs of the pod directly (peer-to-peer) where it can, and else copies through /dev/shm. To other
pods it uses RDMA if it has InfiniBand or RoCE devices and their library, and else TCP.
"""

from __future__ import annotations

import ctypes
import os
import resource
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from longboat_runtime.doctor.finding import Finding, note, ok, skipped, wrong
from longboat_runtime.doctor.gpus import Gpus
from longboat_runtime.doctor.place import Place

IN_POD, BETWEEN_PODS = "NCCL in the pod", "NCCL between pods"
_UNSET = "remove it from the runtime template, unless NVIDIA's support asked for it"


@dataclass(frozen=True, slots=True)
class Network:
    """Describes what NCCL could use to reach other pods.

    `interfaces` are those that are up, without the loopback, with their speed in Mbit/s, None if it isn't known. `rdma` names the node's RDMA
    devices, `verbs` says whether the container has their device files, `library` whether it has libibverbs, and `locks` whether it may
    lock memory without a limit. `variables` are NCCL's settings.
    """

    interfaces: Mapping[str, int | None] = field(default_factory=dict)
    rdma: tuple[str, ...] = ()
    verbs: bool = False
    library: bool = False
    locks: bool = True
    variables: Mapping[str, str] = field(default_factory=dict)


def judge_in_pod(gpus: Gpus, variables: Mapping[str, str]) -> Finding:
    """Judges how the GPUs of the pod reach each other. Pure."""
    count = len(gpus.devices)
    if count < 2:
        return skipped(IN_POD, "one GPU in this pod" if count else "no GPU in this pod")
    pairs = Counter(gpus.links.values())
    direct = {link: number for link, number in sorted(pairs.items()) if link != "no"}
    if len(pairs) == 1:
        text = f"all pairs by {next(iter(direct))}" if direct else "no pair"
    else:
        text = ", ".join(f"{number} of {pairs.total()} pairs by {link}" for link, number in direct.items())
    text = f"{count} GPUs; peer-to-peer: {text}"
    if _on(variables, "NCCL_P2P_DISABLE"):
        return note(
            IN_POD, f"{text}; NCCL_P2P_DISABLE={variables['NCCL_P2P_DISABLE']} keeps NCCL from using it", _UNSET
        )
    if not pairs["no"]:
        return ok(IN_POD, text)
    if _on(variables, "NCCL_SHM_DISABLE"):
        return note(IN_POD, f"{text}; NCCL_SHM_DISABLE leaves the others only the network", _UNSET)
    example = next(f"{first} and {second}" for (first, second), link in sorted(gpus.links.items()) if link == "no")
    cure = "compare `nvidia-smi topo -p2p r` on the node; mostly PCIe's ACS or the IOMMU is in the way, and the node's firmware turns it off"
    return note(IN_POD, f"{text}; others, such as {example}, copy through shared memory, which is slower", cure)


def judge_between_pods(network: Network, gpus: Gpus, place: Place) -> Finding:
    """Judges how trainers and engines reach those of other pods. Pure."""
    if not gpus.devices or not (place.computes or place.container is None):
        return skipped(BETWEEN_PODS, "no GPU in this pod" if not gpus.devices else "nothing here uses NCCL")
    if not network.interfaces:
        return wrong(
            BETWEEN_PODS,
            "no network interface is up",
            "see the events of the pod (kubectl describe pod) about its network",
        )
    selected = network.variables.get("NCCL_SOCKET_IFNAME", "")
    usable = sorted(name for name in network.interfaces if matches(selected, name))
    if not usable:
        cure = "remove it from the runtime template, or have it name one of those"
        up = ", ".join(sorted(network.interfaces))
        return wrong(BETWEEN_PODS, f"NCCL_SOCKET_IFNAME={selected} matches no interface that is up: {up}", cure)
    tcp = f"TCP over {', '.join(_speed(name, network.interfaces[name]) for name in usable)}"
    if not network.rdma:
        return ok(BETWEEN_PODS, tcp)
    devices = ", ".join(network.rdma)
    if _on(network.variables, "NCCL_IB_DISABLE"):
        return note(BETWEEN_PODS, f"{tcp}; NCCL_IB_DISABLE keeps NCCL from RDMA by {devices}", _UNSET)
    if not network.verbs:
        cure = "have the runtime template's container ask for the resource of the cluster's RDMA device plugin, if several nodes train"
        return note(BETWEEN_PODS, f"{tcp}; the node's RDMA devices ({devices}) are not in this container", cure)
    if not network.library:
        return note(
            BETWEEN_PODS,
            f"{tcp}; RDMA by {devices} lacks libibverbs",
            "install libibverbs1 and ibverbs-providers in the image",
        )
    if not network.locks:
        cure = "let the node's container runtime raise the limit of locked memory: LimitMEMLOCK=infinity in containerd's unit"
        return note(
            BETWEEN_PODS, f"RDMA by {devices}, but the container may lock little memory, which RDMA has to", cure
        )
    return ok(BETWEEN_PODS, f"RDMA by {devices}")


def matches(selected: str, name: str) -> bool:
    """Whether NCCL_SOCKET_IFNAME = `selected` lets NCCL use the interface `name`. Pure.

    A list of prefixes; `=` before it makes them whole names, `^` those to leave out (NVIDIA, NCCL's environment variables). Empty: all.
    """
    if not selected:
        return True
    excluded, rest = selected.startswith("^"), selected.removeprefix("^")
    exact, names = rest.startswith("="), rest.removeprefix("=").split(",")
    listed = name in names if exact else any(name.startswith(prefix) for prefix in names)
    return listed != excluded


def own_network() -> Network:
    """Looks at the network of this container."""
    interfaces = {}
    for path in sorted(Path("/sys/class/net").glob("*")):
        if path.name != "lo" and _text(path / "operstate") in {"up", "unknown"}:
            speed = _text(path / "speed")
            interfaces[path.name] = int(speed) if speed.isdecimal() else None
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return Network(
        interfaces,
        tuple(sorted(path.name for path in Path("/sys/class/infiniband").glob("*"))),
        verbs=any(Path("/dev/infiniband").glob("uverbs*")),
        library=_loads("libibverbs.so.1"),
        locks=soft == resource.RLIM_INFINITY,
        variables={name: value for name, value in os.environ.items() if name.startswith("NCCL_")},
    )


def _on(variables: Mapping[str, str], name: str) -> bool:
    return variables.get(name, "0") not in {"", "0"}


def _speed(name: str, megabits: int | None) -> str:
    return name if megabits is None else f"{name} ({megabits / 1000:g} Gbit/s)"


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""  # virtual interfaces have no speed


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
