"""Rules of `longboat doctor`: what is wrong, worth a note or fine, by the facts."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from longboat_runtime.doctor.clock import Clock, judge_clock, least_skew
from longboat_runtime.doctor.finding import Finding, Verdict
from longboat_runtime.doctor.gpus import Gpu, Gpus, judge_devices, judge_driver
from longboat_runtime.doctor.head import Reached, judge_head
from longboat_runtime.doctor.nccl import Network, judge_between_pods, judge_in_pod, matches
from longboat_runtime.doctor.place import Place, place
from longboat_runtime.doctor.shared_memory import LEAST, SharedMemory, judge_shared_memory
from longboat_runtime.doctor.volumes import Directory, Probe, directories, judge_directory

GOLDEN = Path(__file__).parents[1] / "operator_plan/golden/full"
H100 = Gpu("NVIDIA H100 80GB HBM3", 80 * 2**30, (9, 0))
GIB = 2**30
TRAINER = Place("trainer", "job-head:6379", 2, "job-trainer-0-a1", "node-1")
ROLLOUT = Place("rollout", "job-head:6379", 2, "job-rollout-0-a1", "node-1")
DRIVER = Place("driver", "127.0.0.1:6379", pod="job-driver-0-a1")
NAMES = ("driver", "ray-head", "rollout", "trainer", "reward", "graders", "other", None)

versions = st.tuples(st.integers(11, 14), st.integers(0, 9))
gpu = st.builds(
    Gpu,
    st.sampled_from(["H100", "V100"]),
    st.integers(2**30, 2**40),
    st.tuples(st.integers(5, 12), st.integers(0, 9)),
    st.none() | st.just("in progress"),
)
variables = st.dictionaries(
    st.sampled_from(["NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE", "NCCL_SOCKET_IFNAME"]),
    st.sampled_from(["0", "1", "eth", "=eth0", "^docker"]),
)
places = st.builds(
    Place, st.sampled_from(NAMES), st.none() | st.just("head:6379"), st.integers(0, 8), st.just("pod"), st.just("node")
)


@st.composite
def gpu_facts(draw: st.DrawFn) -> Gpus:
    devices = tuple(draw(st.lists(gpu, max_size=4)))
    pairs = [(first, second) for second in range(len(devices)) for first in range(second)]
    return Gpus(
        devices,
        draw(st.none() | st.just("580.65")),
        draw(st.none() | versions),
        draw(st.none() | versions),
        draw(st.booleans()),
        draw(st.integers(0, 4)),
        draw(st.none() | st.just("driver mismatch")),
        {pair: draw(st.sampled_from(["NVLink", "PCIe", "no"])) for pair in pairs},
    )


networks = st.builds(
    Network,
    st.dictionaries(st.sampled_from(["eth0", "ib0", "docker0"]), st.none() | st.integers(10, 400_000)),
    st.lists(st.sampled_from(["mlx5_0", "mlx5_1"]), unique=True).map(tuple),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    variables,
)
probes = st.builds(
    Probe,
    st.none() | st.just("renaming a file"),
    st.sampled_from([errno.EACCES, errno.ENOSPC, errno.EROFS, errno.EIO, errno.ENOENT, errno.EINVAL]),
    st.booleans(),
    st.integers(0, 2**50),
    st.integers(0, 2**50),
    st.none() | st.integers(0, 9),
    st.none() | st.floats(1, 1e10),
)
reaches = st.builds(
    Reached,
    st.none() | st.just("Name not known"),
    st.booleans(),
    st.booleans(),
    st.none() | st.just("id"),
    st.booleans(),
)
clocks = st.builds(Clock, st.none() | st.floats(-1e4, 1e4), st.just("timed out"), st.floats(-100, 100), st.booleans())
memories = st.builds(SharedMemory, st.integers(0, 2**42), st.integers(0, 2**42), st.none() | st.integers(1, 2**42))


@given(gpu_facts(), networks, memories, probes, reaches, clocks, places)
def test_whatever_is_to_be_changed_has_its_cure_in_a_line(
    gpus: Gpus, network: Network, memory: SharedMemory, probe: Probe, reached: Reached, clock: Clock, where: Place
) -> None:
    findings = [
        judge_devices(gpus, where),
        judge_driver(gpus),
        judge_in_pod(gpus, network.variables),
        judge_between_pods(network, gpus, where),
        judge_shared_memory(memory, where),
        judge_head(reached, where),
        judge_clock(clock, where),
        *(judge_directory(path, probe) for path in directories(where, Path("/work"), Path("/tmp"), Path("/home"))),
    ]
    for finding in findings:
        assert bool(finding.cure) == (finding.verdict in {Verdict.NOTE, Verdict.WRONG}), finding
        assert finding.text
        assert "\n" not in finding.text + finding.cure


def devices(count: int, **changes: object) -> Gpus:
    facts = {"driver": "580.65", "cuda": (13, 0), "torch_cuda": (13, 0), "engines_on_gpus": True, "files": count}
    return Gpus((H100,) * count, **(facts | changes))


def test_gpus_that_the_role_needs_are_fine_and_described() -> None:
    finding = judge_devices(devices(2), TRAINER)
    assert finding == Finding("devices", Verdict.OK, "2 x NVIDIA H100 80GB HBM3, 80.0 GiB, compute capability 9.0")


@given(gpu_facts(), st.sampled_from([TRAINER, ROLLOUT]))
def test_fewer_gpus_than_the_job_expects_are_wrong_where_models_are_computed_on_gpus(gpus: Gpus, where: Place) -> None:
    if gpus.engines_on_gpus and len(gpus.devices) < where.offers:
        assert judge_devices(gpus, where).verdict is Verdict.WRONG


@pytest.mark.parametrize("name", [name for name in NAMES if name not in {"rollout", "trainer"}])
@pytest.mark.parametrize("engines_on_gpus", [False, True])
def test_no_gpu_is_fine_where_none_is_needed(name: str | None, engines_on_gpus: bool) -> None:
    finding = judge_devices(Gpus(torch_cuda=(13, 0), engines_on_gpus=engines_on_gpus), Place(name, pod="pod"))
    assert finding.verdict is not Verdict.WRONG
    assert (finding.verdict is Verdict.NOTE) == (name is None and engines_on_gpus)
    assert finding.text.startswith("no GPU")


@pytest.mark.parametrize("where", [TRAINER, ROLLOUT])
def test_no_gpu_is_fine_with_an_image_for_cpus_and_wrong_with_one_for_gpus(where: Place) -> None:
    assert judge_devices(Gpus(torch_cuda=(13, 0)), where).verdict is Verdict.OK
    finding = judge_devices(Gpus(torch_cuda=(13, 0), engines_on_gpus=True), where)
    assert (finding.verdict, "nvidia.com/gpu" in finding.cure) == (Verdict.WRONG, True)


def test_a_gpu_that_cannot_be_used_is_named_with_what_is_in_the_way() -> None:
    def cure(gpus: Gpus, where: Place = TRAINER) -> str:
        finding = judge_devices(gpus, where)
        assert finding.verdict is Verdict.WRONG
        return finding.cure

    assert "Container Toolkit" in cure(Gpus(files=2, engines_on_gpus=True))
    assert "Container Toolkit" in cure(Gpus(problem="Driver/library version mismatch"), DRIVER)
    assert "Fabric Manager" in cure(Gpus((Gpu("H100", 1, (9, 0), "not started"),) * 2))
    assert "7.5 or more" in cure(Gpus((Gpu("V100", 1, (7, 0)),) * 2, torch_cuda=(13, 0)))
    assert "longboat-runtime-gpu" in cure(devices(2, engines_on_gpus=False), ROLLOUT)
    assert "longboat-runtime-gpu" in cure(Gpus(files=2), TRAINER)


def test_more_gpus_than_the_job_uses_are_worth_a_note() -> None:
    finding = judge_devices(devices(8), TRAINER)
    assert (finding.verdict, "the job uses 2 of them" in finding.text) == (Verdict.NOTE, True)


@given(versions, versions)
def test_a_driver_runs_its_own_major_version_of_cuda_and_older_ones(
    cuda: tuple[int, int], torch: tuple[int, int]
) -> None:
    finding = judge_driver(devices(1, cuda=cuda, torch_cuda=torch))
    assert (finding.verdict is Verdict.WRONG) == (cuda[0] < torch[0])


def test_a_driver_that_is_too_old_is_told_which_one_is_needed() -> None:
    finding = judge_driver(devices(1, driver="550.54", cuda=(12, 4)))
    assert finding.text == "550.54, for CUDA up to 12.4; torch is built for CUDA 13.0"
    assert finding.cure == "update the NVIDIA driver of the node to 580 or newer"


def linked(*links: str, variables: Mapping[str, str] | None = None) -> Finding:
    pairs = [(0, 1), (0, 2), (1, 2)]
    facts = devices(3, links=dict(zip(pairs, links, strict=True)))
    return judge_in_pod(facts, variables or {})


def test_paths_within_a_pod() -> None:
    assert linked("NVLink", "NVLink", "NVLink") == Finding(
        "NCCL in the pod", Verdict.OK, "3 GPUs; peer-to-peer: all pairs by NVLink"
    )
    assert linked("NVLink", "PCIe", "PCIe").text.endswith("peer-to-peer: 1 of 3 pairs by NVLink, 2 of 3 pairs by PCIe")
    copied = linked("NVLink", "no", "no")
    assert (copied.verdict, "such as 0 and 2" in copied.text) == (Verdict.NOTE, True)
    assert linked("NVLink", "NVLink", "NVLink", variables={"NCCL_P2P_DISABLE": "1"}).verdict is Verdict.NOTE
    assert linked("NVLink", "NVLink", "NVLink", variables={"NCCL_P2P_DISABLE": "0"}).verdict is Verdict.OK
    assert "only the network" in linked("no", "no", "no", variables={"NCCL_SHM_DISABLE": "1"}).text
    assert judge_in_pod(devices(1), {}).verdict is Verdict.SKIPPED


def test_paths_between_pods() -> None:
    def between(**facts: object) -> Finding:
        return judge_between_pods(Network(**({"interfaces": {"eth0": 25_000}} | facts)), devices(2), TRAINER)

    rdma = {"rdma": ("mlx5_0",), "verbs": True, "library": True}
    assert between().text == "TCP over eth0 (25 Gbit/s)"
    assert between(**rdma) == Finding("NCCL between pods", Verdict.OK, "RDMA by mlx5_0")
    assert "device plugin" in between(**rdma | {"verbs": False}).cure
    assert "libibverbs1" in between(**rdma | {"library": False}).cure
    assert "LimitMEMLOCK" in between(**rdma | {"locks": False}).cure
    assert between(**rdma | {"variables": {"NCCL_IB_DISABLE": "1"}}).verdict is Verdict.NOTE
    assert between(interfaces={}).verdict is Verdict.WRONG
    assert between(variables={"NCCL_SOCKET_IFNAME": "ens"}).verdict is Verdict.WRONG


@pytest.mark.parametrize(
    ("selected", "names"),
    [
        ("", ["eth0", "eth10", "ib0"]),
        ("eth", ["eth0", "eth10"]),
        ("=eth0", ["eth0"]),
        ("=eth0,ib0", ["eth0", "ib0"]),
        ("^eth", ["ib0"]),
        ("^=eth0", ["eth10", "ib0"]),
        ("eth1,ib", ["eth10", "ib0"]),
    ],
)
def test_interfaces_are_selected_as_nccl_does(selected: str, names: list[str]) -> None:
    assert [name for name in ("eth0", "eth10", "ib0") if matches(selected, name)] == names


@given(memories)
def test_shared_memory_below_a_ray_nodes_least_is_wrong_and_no_other(memory: SharedMemory) -> None:
    assert (judge_shared_memory(memory, TRAINER).verdict is Verdict.WRONG) == (memory.total < LEAST)


def test_shared_memory_counts_as_memory_and_may_be_full() -> None:
    assert judge_shared_memory(SharedMemory(GIB, GIB, 8 * GIB), TRAINER).verdict is Verdict.OK
    assert judge_shared_memory(SharedMemory(8 * GIB, GIB, GIB), TRAINER).verdict is Verdict.NOTE
    assert judge_shared_memory(SharedMemory(GIB, 2**20), TRAINER).verdict is Verdict.NOTE
    assert judge_shared_memory(SharedMemory(64 * 2**20, 2**20), Place("graders", pod="p")).verdict is Verdict.SKIPPED


CLAIM = Directory(Path("/checkpoint"), "checkpoints", claim=True)


@pytest.mark.parametrize(
    ("error", "cure"),
    [
        (errno.ENOSPC, "enlarge the claim"),
        (errno.EDQUOT, "enlarge the claim"),
        (errno.EACCES, "fsGroup"),
        (errno.EROFS, "access mode"),
        (errno.EINVAL, "use a file system that can sync"),
        (errno.ENOENT, "mount a volume"),
        (errno.ESTALE, "CSI driver"),
    ],
)
def test_a_claim_that_cannot_be_written_has_the_cure_of_its_error(error: int, cure: str) -> None:
    finding = judge_directory(CLAIM, Probe("writing and syncing a file", error))
    assert finding.verdict is Verdict.WRONG
    assert cure in finding.cure


def test_a_claim_is_described_and_watched_for_space() -> None:
    finding = judge_directory(CLAIM, Probe(size=100 * GIB, free=50 * GIB, speed=4e8))
    assert finding == Finding(
        "volume /checkpoint", Verdict.OK, "for checkpoints: 50.0 GiB of 100.0 GiB free, written at 400 MB/s"
    )
    assert judge_directory(CLAIM, Probe(size=100 * GIB, free=GIB)).verdict is Verdict.NOTE
    assert judge_directory(CLAIM, Probe(size=100 * GIB, free=50 * GIB, files=0)).verdict is Verdict.WRONG
    assert judge_directory(CLAIM, Probe(silent=True)).verdict is Verdict.WRONG


@pytest.mark.parametrize(("name", "claims"), [("driver", 1), ("trainer", 1), ("rollout", 0), ("graders", 0), (None, 0)])
def test_only_drivers_and_trainers_have_the_checkpoint_claim(name: str | None, claims: int) -> None:
    listed = [*directories(Place(name, pod="pod"), Path("/work"), Path("/tmp"), Path("/home/longboat"))]
    assert sum(directory.claim for directory in listed) == claims
    assert (Path("/work") in [directory.path for directory in listed]) == (name is None)


@given(st.floats(-1e6, 1e6), st.floats(0, 60), st.floats(0, 1), st.floats(0, 2e9))
def test_the_skew_is_never_overstated_and_missed_by_at_most_the_answers_time_and_a_second(
    ahead: float, took: float, part: float, begun: float
) -> None:
    """`ahead` is this clock's lead, the server answers after a `part` of what the request `took`."""
    date = float(int(begun + part * took))
    skew = least_skew(begun + ahead, begun + took + ahead, date)
    rounding = 1e-3
    assert skew * ahead >= -rounding
    assert abs(skew) <= abs(ahead) + rounding
    assert abs(ahead - skew) <= took + 1 + rounding


@pytest.mark.parametrize(
    ("clock", "verdict"),
    [
        (Clock(0.0, cluster=True), Verdict.OK),
        (Clock(1.9, cluster=True), Verdict.OK),
        (Clock(-5.0, cluster=True), Verdict.NOTE),
        (Clock(90.0, cluster=True), Verdict.WRONG),
        (Clock(0.0, stepped=3.0, cluster=True), Verdict.NOTE),
        (Clock(problem="timed out", cluster=True), Verdict.SKIPPED),
        (Clock(), Verdict.SKIPPED),
    ],
)
def test_clocks(clock: Clock, verdict: Verdict) -> None:
    assert judge_clock(clock, TRAINER).verdict is verdict


def test_only_a_driver_needs_the_api_server() -> None:
    assert judge_clock(Clock(problem="timed out", cluster=True), DRIVER).verdict is Verdict.WRONG
    assert judge_clock(Clock(problem="timed out", stepped=3.0, cluster=True), DRIVER).verdict is Verdict.WRONG


@pytest.mark.parametrize(
    ("reached", "cure"),
    [
        (Reached(unresolved="Name or service not known"), "DNS"),
        (Reached(refused=True), "container ray-head"),
        (Reached(silent=True), "NetworkPolicies"),
        (Reached(), "Ray token"),
        (Reached(cluster="id"), "kubectl logs of this container"),
        (Reached(cluster="id", joined=True), ""),
    ],
)
def test_how_far_a_request_to_the_head_came_names_what_to_look_at(reached: Reached, cure: str) -> None:
    finding = judge_head(reached, TRAINER)
    assert (finding.verdict is Verdict.OK) == (not cure)
    assert cure in finding.cure


def containers() -> list[tuple[str, list[str]]]:
    """The containers of the operator's pods, with their command lines."""
    pods = [pod for path in sorted(GOLDEN.glob("*-pod.yaml")) for pod in yaml.safe_load_all(path.read_text())]
    specs = [pod["spec"] for pod in pods if pod["kind"] == "Pod"]
    return [
        (container["name"], [*container["command"], *container["args"]])
        for spec in specs
        for container in [*spec.get("initContainers", []), *spec["containers"]]
        if container.get("args", [""])[0] in {"agent", "graders"}
    ]


@pytest.mark.parametrize(("name", "command"), containers())
def test_a_container_of_the_operators_is_recognized_by_its_command(name: str, command: list[str]) -> None:
    got = place([["sh"], command, ["ray", "start"]], {"POD_NAME": "pod", "NODE_NAME": "node"})
    assert (got.container, got.pod, got.node) == (name, "pod", "node")
    assert (got.head is None) == (name == "graders")
    if "--devices" in command:
        assert got.offers == int(command[command.index("--devices") + 1])


def test_all_containers_of_the_operator_are_recognized() -> None:
    assert {name for name, _ in containers()} == {"driver", "ray-head", "rollout", "trainer", "reward", "graders"}


def test_outside_pods_no_command_counts() -> None:
    assert place([["longboat", "agent", "trainer", "--head", "h:1"]], {}) == Place()
