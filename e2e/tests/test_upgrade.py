"""Jobs that train on while Longboat is upgraded from each release, rolled back and upgraded again, and lose pods meanwhile.

A pod's image is that of the template with which its job began, whichever operator makes the pod. So a job that began with the release's
image has agents of the release in pods of this operator, and one that began with this version's image has it the other way round.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from e2e import host_runtime, installation, site, small_job, volumes
from e2e.cluster.cluster import Cluster
from e2e.cluster.images import catalogue
from e2e.cluster.images.catalogue import Built
from e2e.fixtures import lent
from e2e.host_runtime import CONTAINERS, ENVIRONMENT, REPOSITORY
from e2e.jobs import Job, Object
from e2e.site import Site
from tests.releases.release import RELEASES, Release, run_script
from tests.support.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.extended, pytest.mark.timeout(5400)]

# Those of jobs without environments, which the releases don't know.
ROLES = CONTAINERS.keys() - {"environment"}

# So many that no job ends early: each is held while nothing waits for its next steps.
STEPS = 120

# Writes a profile of made-up engines, as `longboat profile` of the first release would for a job's spec.
WRITE_PROFILE = """
import json, sys
from pathlib import Path
from longboat_crds.job import RLJobSpec
from longboat_runtime.rollout.engine import engine_config
from longboat_runtime.rollout.factory import read_model_config
from longboat_runtime.rollout.profile import ProfiledEngine, ProfileFile, identity

spec, path = json.load(sys.stdin)
config = engine_config(RLJobSpec.model_validate(spec), "", (0,))
engine = ProfiledEngine(
    kv_tokens=1000, prefill_seconds=0.0, sequences=(1, 2), contexts=(1, 2), seconds=((0.1, 0.1), (0.1, 0.1)), reshape_seconds={}
)
ProfileFile(model=config.model, engine=identity(config, read_model_config(config)), engines={1: engine}).write(Path(path))
json.dump(None, sys.stdout)
"""


@dataclass(frozen=True)
class Version:
    """The files of one version of Longboat, and its images."""

    tree: Path
    operator: Built
    runtime: Built

    @property
    def chart(self) -> Path:
        return self.tree / "charts" / "longboat"

    def install(self, cluster: Cluster, *, reuse_values: bool = False) -> None:
        """Installs this version, or upgrades to it."""
        settings = ("image.pullPolicy=Never",)
        installation.install(
            cluster.kubeconfig, self.operator.ref, *settings, chart=self.chart, reuse_values=reuse_values
        )
        installation.await_operator(cluster)


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Yields a cluster of its own, since Longboat is installed on the package's."""
    with lent(request.config, "upgrade") as made:
        yield made


@pytest.fixture(scope="module")
def current(cluster: Cluster) -> Version:
    runtime = catalogue.runtime_sources("runtime-current", REPOSITORY)
    return Version(REPOSITORY, catalogue.find("operator").build(), runtime.build())


@pytest.fixture(params=RELEASES, ids=[release.version for release in RELEASES])
def release(request: pytest.FixtureRequest) -> Release:
    release: Release = request.param
    return release


@pytest.fixture
def released(release: Release, tmp_path: Path) -> Version:
    tree = release.extract(tmp_path / "release")
    operator = catalogue.distribution(f"operator-{release.version}", tree, "operator")
    return Version(tree, operator.build(), catalogue.runtime_sources(f"runtime-{release.version}", tree).build())


@pytest.fixture
def upgraded_site(cluster: Cluster, released: Version, current: Version) -> Iterator[Site]:
    """Installs the release, with a runtime template for each version's image."""
    for version in (released, current):
        for image in (version.operator, version.runtime):
            cluster.load(image.archive)
    installation.uninstall(cluster)
    released.install(cluster)
    made = site.prepare_namespace(cluster, "upgrade")
    small_job.write_data(made.data)
    images = {"released": released.runtime.ref, "current": current.runtime.ref}
    templates = [host_runtime.template(image, name) for name, image in images.items()]
    for template in templates:
        del template["spec"]["roles"]["environment"]
    volumes.apply(cluster, templates)
    yield made
    installation.uninstall(cluster)


def spec(runtime: str, name: str, policy: str = "Synchronous", **changes: Any) -> Object:
    """Makes the spec of a job whose rounds don't end while the file `hold-NAME` is in the data folder."""
    rewards = [small_job.hold_grades(reward, f"hold-{name}") for reward in small_job.spec()["rewards"]]
    rounds = {"policy": policy, "steps": STEPS, "promptsPerRound": 4}
    checkpoint = {"everySteps": 2, "graceSeconds": 60, "reclaimPolicy": "Delete"}
    return small_job.spec(runtime, rounds=rounds, checkpoint=checkpoint, rewards=rewards, **changes)


def specs(release: Release, released: Version, folder: Path) -> dict[str, Object]:
    """Makes the specs of three jobs; one has fields that have gone since, or the image of this version."""
    made = {"plain": spec("released", "plain"), "racing": spec("released", "racing", "TailBatching")}
    if release.rollback:
        return {**made, "newer": spec("current", "newer", samples={"everySteps": 1, "keep": 3})}
    early = spec("released", "early", rollouts={"everySteps": 1, "keep": 3})
    on_host = {**early, "model": {**early["model"], "path": str(folder / "model")}}
    run_script(released.tree, WRITE_PROFILE, [on_host, str(folder / "profile.json")])
    (folder / "profile.json").chmod(0o644)
    early["rollout"]["parallelism"] = {"mode": "Predictive", "profile": f"{host_runtime.DATA}/profile.json"}
    return {**made, "early": early}


def lost_fields(before: Any, after: Any, path: str = "spec") -> Iterator[str]:
    """Yields each value that was there before and is gone or another one now."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name, value in before.items():
            yield from lost_fields(value, after.get(name), f"{path}.{name}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from lost_fields(old, new, f"{path}[{number}]")
    elif before != after:
        yield f"{path}: was {before}, is {after}"


@dataclass(frozen=True)
class Seen:
    """What must stay as it is when only the operator is replaced."""

    spec: Object
    pods: dict[str, str]
    restarts: int


def look(job: Job) -> Seen:
    return Seen(job.get()["spec"], job.pod_uids(), job.status().get("restarts", 0))


def restarted_containers(job: Job) -> dict[str, int]:
    """Returns how often containers have been restarted, by pod and container, without those that never were."""
    return {
        f"{name}/{container['name']}": container["restartCount"]
        for name, pod in job.pods().items()
        for kind in ("containerStatuses", "initContainerStatuses")
        for container in pod["status"].get(kind, [])
        if container["restartCount"]
    }


def train_on(job: Job, folder: Path) -> None:
    """Waits for two more steps, the first of which may have been under way, and holds the job afterwards."""
    hold = folder / f"hold-{job.name}"
    hold.unlink(missing_ok=True)
    job.wait_for_step(job.step() + 2)
    hold.touch()


def network_policies(job: Job) -> set[str]:
    """Returns the names of the job's NetworkPolicies."""
    of_job = ("-l", f"longboat.dev/job={job.name}", "-o", "jsonpath={.items[*].metadata.name}")
    return set(job.cluster.kubectl("-n", job.namespace, "get", "networkpolicies", *of_job).split())


def kill_every_role(job: Job) -> set[str]:
    """Deletes a pod of every role at once; returns their names."""
    pods = {job.pod(role) for role in ROLES}
    job.cluster.kubectl("-n", job.namespace, "delete", "pod", *sorted(pods), "--grace-period=0", "--force")
    return pods


def test_jobs_train_on_through_upgrades_and_a_rollback(
    release: Release, released: Version, current: Version, upgraded_site: Site
) -> None:
    cluster = upgraded_site.cluster
    folder = upgraded_site.data
    wanted = specs(release, released, folder)
    jobs = [Job(cluster, upgraded_site.namespace, name) for name in wanted]
    for job in jobs:
        job.apply(wanted[job.name])
    for job in jobs:
        train_on(job, folder)
    first = {job.name: look(job).spec for job in jobs}
    killed: dict[str, set[str]] = {job.name: set() for job in jobs}

    def check_images(job: Job) -> None:
        """Asserts that the agents are those of the version whose template the job names."""
        ref = (current if job.name == "newer" else released).runtime.ref
        pods = job.pods()
        assert {c["image"] for pod in pods.values() for c in pod["spec"]["containers"]} == {ref}
        python = (str(ENVIRONMENT / "bin" / "python"), "-c", "import longboat_runtime as r; print(r.__file__)")
        assert job.exec(job.pod("rollout"), "rollout", *python).startswith("/opt/longboat/runtime/")

    def replace_operator(replace: Any) -> None:
        before = {job.name: look(job) for job in jobs}
        replace()
        for job in jobs:
            train_on(job, folder)
            after = look(job)
            assert [*lost_fields(first[job.name], after.spec)] == []
            assert (after.pods, after.restarts) == (before[job.name].pods, before[job.name].restarts), job.describe()

    def lose_pods() -> None:
        for job in jobs:
            killed[job.name] |= kill_every_role(job)
        for job in jobs:
            for role in ROLES:
                job.wait(f"a new {role} pod", lambda: job.pod_uids(role).keys() - killed[job.name])  # noqa: B023 - called here
            train_on(job, folder)
            check_images(job)
            history = job.status().get("restartHistory", [])
            assert {record["pod"] for record in history} <= killed[job.name], job.describe()
            assert restarted_containers(job) == {}, job.describe()

    for job in jobs:
        check_images(job)
    if release.rollback:
        replace_operator(lambda: current.install(cluster))
        lose_pods()
        replace_operator(lambda: installation.roll_back(cluster.kubeconfig, 1))
        lose_pods()
        replace_operator(lambda: current.install(cluster, reuse_values=True))
    else:
        replace_operator(lambda: current.install(cluster, reuse_values=True))
        lose_pods()
        replace_operator(lambda: current.install(cluster))
    for job in jobs:
        expected = {f"{job.name}-job", f"{job.name}-reward"}
        job.wait("today's names of NetworkPolicies", lambda: network_policies(job), expected.__eq__)  # noqa: B023 - called here
    for job in jobs:
        (folder / f"hold-{job.name}").unlink()
    for job in jobs:
        job.wait("the last step", job.has_succeeded)
        assert job.step() == STEPS
    eventually(lambda: [name for job in jobs for name in job.pods()], lambda pods: not pods)
    for job in jobs:
        job.delete()
