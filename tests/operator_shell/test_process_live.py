"""`longboat-operator run` as a process with the rights that the chart grants, no more: start, failover, end."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import ClientConnectionError, ClientSession

from e2e.cluster import Cluster
from longboat_operator.kube.client import KubeClient
from longboat_operator.kube.errors import NotFoundError
from longboat_operator.kube.resources import LEASE, RL_JOB, ROLE, ROLE_BINDING, SERVICE_ACCOUNT, Resource
from longboat_operator.kube.transport import Request
from tests.operator_shell import small_plan
from tests.operator_shell.conftest import LEASE_SECONDS
from tests.support.ports import free_port
from tests.support.waiting import DEADLINE_SECONDS, eventually_async

pytestmark = pytest.mark.cluster

CLUSTER_ROLE = Resource("ClusterRole", "clusterroles", ROLE.group, namespaced=False)
CLUSTER_ROLE_BINDING = Resource("ClusterRoleBinding", "clusterrolebindings", ROLE.group, namespaced=False)
TEMPLATES = Path(__file__).parents[2] / "charts" / "longboat" / "templates"
LEASE_NAME = "operator"


def chart_rules() -> list[dict[str, Any]]:
    """The rights of an installation, as the chart writes them, with those that depend on a value."""
    helpers = (TEMPLATES / "_helpers.tpl").read_text()
    found = re.search(r'define "longboat\.rules" -}}\n(.*?)\n{{- end }}(?=\n\n|\n*\Z)', helpers, re.DOTALL)
    assert found is not None
    rules: list[dict[str, Any]] = yaml.safe_load(re.sub(r"{{.*?}}", "", found[1]))
    assert {"pods", "secrets"} <= {resource for rule in rules for resource in rule["resources"]}
    return rules


class Account:
    """A service account in a namespace, and a kubeconfig that speaks for it by token."""

    def __init__(self, admin: KubeClient, namespace: str, folder: Path) -> None:
        self._admin = admin
        self.namespace = namespace
        self.kubeconfig = folder / "kubeconfig"
        self._whole_cluster: list[tuple[Resource, dict[str, Any]]] = []

    async def create(self, cluster: Cluster) -> None:
        await self._admin.create(SERVICE_ACCOUNT, self._object(SERVICE_ACCOUNT, "operator"))
        leases = [
            {"apiGroups": [LEASE.group], "resources": ["leases"], "verbs": ["create"]},
            {
                "apiGroups": [LEASE.group],
                "resources": ["leases"],
                "resourceNames": [LEASE_NAME],
                "verbs": ["get", "update"],
            },
        ]
        await self.grant(ROLE, ROLE_BINDING, "lease", leases)
        path = SERVICE_ACCOUNT.path(self.namespace, "operator", "token")
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
        answer = await self._admin._transport.send(Request("POST", path, "create", "serviceaccounts/token", {}, body))
        described = yaml.safe_load(cluster.kubeconfig.read_text())
        described["users"] = [{"name": described["users"][0]["name"], "user": {"token": answer["status"]["token"]}}]
        self.kubeconfig.write_text(yaml.safe_dump(described))

    async def grant(self, role: Resource, binding: Resource, name: str, rules: list[dict[str, Any]]) -> None:
        named = name if role.namespaced else f"{self.namespace}-{name}"
        subject = {"kind": "ServiceAccount", "namespace": self.namespace, "name": "operator"}
        reference = {"apiGroup": role.group, "kind": role.kind, "name": named}
        for resource, fields in ((role, {"rules": rules}), (binding, {"roleRef": reference, "subjects": [subject]})):
            made = await self._admin.create(resource, {**self._object(resource, named), **fields})
            if not resource.namespaced:
                self._whole_cluster.append((resource, made))

    async def remove(self) -> None:
        for resource, made in self._whole_cluster:
            await self._admin.delete(resource, "", made["metadata"]["name"], made["metadata"]["uid"])

    def _object(self, resource: Resource, name: str) -> dict[str, Any]:
        metadata = {"name": name} | ({"namespace": self.namespace} if resource.namespaced else {})
        return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}


# Runs `longboat-operator` with a boot clock that is ahead by the seconds in a file. It waits long for its own tasks.
OPERATOR = """
import pathlib, sys, time
from longboat_operator import cli, shell
passed, real = pathlib.Path(sys.argv.pop(1)), time.clock_gettime
time.clock_gettime = lambda clock: real(clock) + float(passed.read_text())
shell._END_SECONDS = float("inf")
sys.exit(cli.main())
"""


class BootClock:
    """Advances the boot clock that all processes of a test read."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "boot-clock"
        self._seconds = 0.0
        self.advance(0.0)

    def advance(self, seconds: float) -> None:
        self._seconds += seconds
        whole = self.file.with_suffix(".new")
        whole.write_text(str(self._seconds))
        whole.replace(self.file)


class Process:
    """Runs `longboat-operator run`, with a lease so long that a stalled operator keeps it, and patience with the API server."""

    def __init__(self, kubeconfig: Path, clock: BootClock, namespace: str, *options: str) -> None:
        self.health, self.metrics = free_port(), free_port()
        self._arguments = [
            str(clock.file),
            "run",
            f"--kubeconfig={kubeconfig}",
            f"--lease-namespace={namespace}",
            f"--lease-name={LEASE_NAME}",
            f"--lease-duration={LEASE_SECONDS}",
            f"--request-timeout={DEADLINE_SECONDS}",
            f"--health-port={self.health}",
            f"--metrics-port={self.metrics}",
            *options,
        ]
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> Process:
        program = [sys.executable, "-c", OPERATOR, *self._arguments]
        self._process = await asyncio.create_subprocess_exec(*program, stderr=asyncio.subprocess.PIPE)
        return self

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def end(self) -> tuple[int, str]:
        """Exit status and log, once it has ended."""
        assert self._process is not None
        _, errors = await self._process.communicate()
        assert self._process.returncode is not None
        return self._process.returncode, errors.decode()

    async def kill_if_alive(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.communicate()

    async def ready(self) -> bool:
        return (await self._get(self.health, "/readyz"))[0] == 200

    async def leads(self) -> bool:
        return "longboat_leader 1.0" in (await self._get(self.metrics, "/metrics"))[1]

    async def writes(self) -> list[str]:
        """Samples of writes other than to the lease."""
        _, text = await self._get(self.metrics, "/metrics")
        samples = [line for line in text.splitlines() if line.startswith("longboat_api_requests_total")]
        return [
            line
            for line in samples
            if 'resource="leases"' not in line and not re.search('verb="(get|list|watch)"', line)
        ]

    async def plans(self) -> float:
        """Returns how many plans have been carried out, or 0 while another is due."""
        samples = await self._samples()
        if samples.get("rljob_queue_oldest_seconds", 1.0) > 0:
            return 0.0
        return sum(samples[name] for name in samples if name.startswith("rljob_reconcile_duration_seconds_count"))

    async def knows_who_leads(self) -> None:
        """Waits until this standby has read the lease twice more: the first answer may be older than this call."""

        async def asked() -> float:
            samples = await self._samples()
            return samples.get('longboat_api_requests_total{code="200",resource="leases",verb="get"}', 0.0)

        before = await asked()
        await eventually_async(asked, lambda count: count >= before + 2)

    async def _samples(self) -> dict[str, float]:
        _, text = await self._get(self.metrics, "/metrics")
        samples = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, value in samples}

    async def _get(self, port: int, path: str) -> tuple[int, str]:
        try:
            async with ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as response:
                return response.status, await response.text()
        except ClientConnectionError:
            return 0, ""


@pytest.fixture
async def account(cluster: Cluster, admin: KubeClient, namespace: str, tmp_path: Path) -> AsyncIterator[Account]:
    account = Account(admin, namespace, tmp_path)
    await account.create(cluster)
    yield account
    await account.remove()


@pytest.fixture
def boot_clock(tmp_path: Path) -> BootClock:
    return BootClock(tmp_path)


@pytest.fixture
async def start(account: Account, boot_clock: BootClock) -> AsyncIterator[Any]:
    processes: list[Process] = []

    async def start_one(*options: str) -> Process:
        processes.append(await Process(account.kubeconfig, boot_clock, account.namespace, *options).start())
        return processes[-1]

    yield start_one
    for process in processes:
        await process.kill_if_alive()


async def expire(admin: KubeClient, namespace: str, clock: BootClock, standby: Process) -> None:
    """Lets the lease of a stopped leader expire, and waits until `standby` leads.

    A renewal under way may be stored after the lease has expired; then it has to expire again.
    """
    stopped = await holder(admin, namespace)
    expired = set[str]()

    async def leads() -> bool:
        lease = (await admin.get(LEASE, namespace, LEASE_NAME))["spec"]
        if lease["holderIdentity"] == stopped and lease["renewTime"] not in expired:
            await standby.knows_who_leads()
            clock.advance(LEASE_SECONDS)
            expired.add(lease["renewTime"])
        return await standby.leads()

    await eventually_async(leads)


async def holder(admin: KubeClient, namespace: str) -> str:
    try:
        return str((await admin.get(LEASE, namespace, LEASE_NAME))["spec"]["holderIdentity"])
    except NotFoundError:
        return ""


async def test_the_charts_rights_on_the_whole_cluster_are_enough(
    admin: KubeClient, account: Account, start: Any
) -> None:
    cluster_wide = [
        {"apiGroups": ["longboat.dev"], "resources": ["clusterrlruntimes"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]},
    ]
    await account.grant(CLUSTER_ROLE, CLUSTER_ROLE_BINDING, "operator", [*chart_rules(), *cluster_wide])
    operator = await start()
    await eventually_async(operator.ready)
    await eventually_async(operator.leads)
    await admin.create(RL_JOB, small_plan.manifest(account.namespace, "x"))

    async def has_conditions() -> bool:
        return bool((await admin.get(RL_JOB, account.namespace, "x")).get("status", {}).get("conditions"))

    await eventually_async(has_conditions)  # the real planner says at least that its runtime doesn't exist
    operator.send(signal.SIGTERM)
    status, log = await operator.end()
    assert status == 0, log
    # Namespaces of other tests may be on their way out, or have policies that know another operator.
    lines = [line for line in log.splitlines() if "orbidden" in line]
    assert not [line for line in lines if json.loads(line).get("key", account.namespace).startswith(account.namespace)]
    assert '"level": "error"' not in log
    assert await holder(admin, account.namespace) == ""


async def test_without_rights_it_says_what_it_lacks_and_is_not_ready(account: Account, start: Any) -> None:
    operator = await start()

    async def reasons() -> bool:
        status, text = await operator._get(operator.health, "/readyz")
        return status == 503 and "Pod can't be listed" in text and "RLJob can't be listed" in text

    await eventually_async(reasons)
    assert (await operator._get(operator.health, "/healthz"))[0] == 200
    operator.send(signal.SIGTERM)
    status, log = await operator.end()
    assert status == 0
    assert "pods is forbidden" in log


async def test_a_suspended_leader_ends_and_a_killed_one_is_replaced(
    admin: KubeClient, account: Account, boot_clock: BootClock, start: Any
) -> None:
    await account.grant(ROLE, ROLE_BINDING, "operator", chart_rules())
    namespaced = f"--namespace={account.namespace}"
    first = await start(namespaced)
    await eventually_async(first.leads)
    second = await start(namespaced)
    await eventually_async(second.ready)
    assert not await second.leads()

    first.send(signal.SIGSTOP)  # as a suspended machine would
    await expire(admin, account.namespace, boot_clock, second)
    await admin.create(RL_JOB, small_plan.manifest(account.namespace, "x"))
    await eventually_async(second.writes)
    first.send(signal.SIGCONT)
    status, log = await first.end()
    assert status == 1
    assert "leadership lost" in log

    third = await start(namespaced)
    await eventually_async(third.ready)
    await eventually_async(second.plans)
    second.send(signal.SIGKILL)
    await second.end()
    await expire(admin, account.namespace, boot_clock, third)
    await eventually_async(third.plans)
    assert await third.writes() == []  # the job is as the second left it
    third.send(signal.SIGTERM)
    status, log = await third.end()
    assert status == 0, log
    assert "orbidden" not in log  # a Role in its namespace was enough
    assert await holder(admin, account.namespace) == ""
