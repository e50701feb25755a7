"""What the process tells of itself over HTTP, and how its options are read."""

from __future__ import annotations

import base64
import json
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from longboat_operator import cli
from longboat_operator.health import MOST_NOTES, Health, serve_health, serve_metrics
from longboat_operator.job_metrics import JobMetrics
from longboat_operator.metrics import REGISTRY
from longboat_operator.model import DNS_PEERS, JobKey
from longboat_operator.shell import LeaseOptions
from longboat_operator.watch.cache import Cache, ObjectKey
from tests.support.ports import free_port


async def get(port: int, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as response:
        return response.status, await response.text()


async def test_probes_give_reasons() -> None:
    health = Health()
    port = free_port()
    server = await serve_health(port, lambda: health)
    try:
        assert await get(port, "/healthz") == (200, "ok\n")
        assert await get(port, "/readyz") == (200, "ok\n")
        health = Health(not_ready=("Pod not yet listed", "Service not yet listed"))
        assert await get(port, "/healthz") == (200, "ok\n")
        assert await get(port, "/readyz") == (503, "Pod not yet listed\nService not yet listed\n")
        health = Health(notes=tuple(map(str, range(MOST_NOTES + 2))))
        status, text = await get(port, "/readyz")
        first, *notes, last = text.splitlines()
        assert (status, first, notes) == (200, "ok", [*map(str, range(MOST_NOTES))])
        assert last.startswith("and 2 more")
        health = Health(not_alive=("workers are stuck",))
        assert (await get(port, "/healthz"))[0] == 503
    finally:
        await server.cleanup()


def job(name: str, version: int) -> dict[str, Any]:
    return {
        "apiVersion": "longboat.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"namespace": "a", "name": name, "uid": f"uid-of-{name}", "resourceVersion": str(version)},
        "spec": {"runtimeRef": {"name": "host"}},
        "status": {
            "phase": "Running",
            "training": {"step": 12},
            "roles": {"rollout": {"desired": 3, "ready": 2, "restarts": 1}},
            "checkpoint": {"step": 10, "time": "2026-01-01T00:00:00Z"},
        },
    }


async def test_a_deleted_jobs_series_end_with_it() -> None:
    cache = Cache()
    registry = CollectorRegistry()
    registry.register(JobMetrics(cache))
    cache.put(job("x", 1))
    cache.put(job("y", 2))
    port = free_port()
    server = await serve_metrics(port, (REGISTRY, registry))
    try:
        status, text = await get(port, "/metrics")
        assert status == 200
        assert 'rljob_phase{name="x",namespace="a",phase="Running"} 1.0' in text
        assert 'rljob_role_pods{name="y",namespace="a",role="rollout",state="ready"} 2.0' in text
        assert 'rljob_restarts_total{name="x",namespace="a",role="rollout"} 1.0' in text
        assert 'rljob_step{name="x",namespace="a"} 12.0' in text
        assert "rljob_checkpoint_age_seconds" in text
        assert "uid-of-" not in text
        cache.remove(ObjectKey("RLJob", "a", "x"), 3)
        _, text = await get(port, "/metrics")
        assert 'name="x"' not in text
        assert 'name="y"' in text
    finally:
        await server.cleanup()


def test_a_job_without_status_has_its_series_too() -> None:
    cache = Cache()
    cache.put({key: value for key, value in job("x", 1).items() if key != "status"})
    registry = CollectorRegistry()
    registry.register(JobMetrics(cache))
    assert b'phase="Pending"' in generate_latest(registry)


def options(*arguments: str) -> Any:
    return cli._options(cli._parser().parse_args(["run", *arguments]))


def test_options() -> None:
    whole = options()
    assert whole.namespaces == ()
    assert whole.lease is not None
    assert (whole.health_port, whole.metrics_port, whole.requests_in_flight) == (8081, 8080, 32)
    some = options(
        "--namespace", "a", "--namespace", "b", "--namespace", "a", "--no-leader-election", "--requests-in-flight", "2"
    )
    assert some.namespaces == ("a", "b")
    assert some.lease is None
    assert some.requests_in_flight == 2
    assert whole.dns_peers == DNS_PEERS
    peers = '[{"ipBlock": {"cidr": "169.254.20.10/32"}}]'
    assert options("--dns-peers", peers).dns_peers == ({"ipBlock": {"cidr": "169.254.20.10/32"}},)
    assert options("--namespace", "a").lease.namespace == "a"
    assert options("--lease-namespace", "c", "--lease-name", "n").lease == LeaseOptions("c", "n")
    assert options("--lease-namespace", "c", "--lease-name", "n", "--lease-duration", "60").lease == LeaseOptions(
        "c", "n", 60.0
    )
    slow = options("--request-timeout", "30")
    assert (whole.request_timeout_seconds, slow.request_timeout_seconds) == (10.0, 30.0)
    assert (whole.lease.duration_seconds, slow.lease.duration_seconds) == (20.0, 40.0)


def test_bad_options_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ["run", "--requests-in-flight", "0"],
        ["run", "--request-timeout", "nan"],
        ["run", "--log-format", "xml"],
        ["walk"],
    ):
        with pytest.raises(SystemExit) as caught:
            cli.main(arguments)
        assert caught.value.code == 2
    errors = capsys.readouterr().err
    assert "must be at least 1, not 0" in errors
    assert "must be a finite number of seconds above 0, not nan" in errors
    assert "xml" in errors


def test_a_cluster_that_isnt_there_is_said_so(tmp_path: Any, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "--kubeconfig", str(tmp_path / "none"), "--log-format", "text"]) == 2
    assert "--kubeconfig" in capfd.readouterr().err


def test_a_malformed_certificate_is_said_so(tmp_path: Any, capfd: pytest.CaptureFixture[str]) -> None:
    certificate = base64.b64encode(b"not a certificate").decode()
    kubeconfig = {
        "clusters": [
            {"name": "c", "cluster": {"server": "https://127.0.0.1", "certificate-authority-data": certificate}}
        ],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "current-context": "c",
    }
    (tmp_path / "config").write_text(json.dumps(kubeconfig))
    assert cli.main(["run", "--kubeconfig", str(tmp_path / "config"), "--log-format", "text"]) == 2
    assert "certificate-authority" in capfd.readouterr().err


async def test_a_plan_sees_the_options_that_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    class Recorded:
        def __init__(self, *arguments: Any) -> None:
            given.extend(arguments)

        async def run(self) -> None:
            pass

    async def configuration(_: Any) -> None:
        return None

    monkeypatch.setattr(cli, "Shell", Recorded)
    monkeypatch.setattr(cli, "load_configuration", configuration)
    peer = {"ipBlock": {"cidr": "169.254.20.10/32"}}
    await cli._run(None, options("--dns-peers", json.dumps([peer]), "--request-timeout", "30"))
    cache = Cache()
    cache.put(job("x", 1))
    _, _, observe, _ = given
    observed = observe(cache, JobKey("a", "x"))
    assert (observed.dns_peers, observed.request_seconds) == ((peer,), 30.0)
