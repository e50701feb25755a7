"""Paths, errors and configurations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kubernetes.aio.client.configuration import Configuration

from longboat_operator.kube import config, errors, resources
from longboat_operator.kube.config import ConfigurationError, load_configuration


def test_paths() -> None:
    assert resources.POD.path("a", "x", "resize") == "/api/v1/namespaces/a/pods/x/resize"
    assert resources.RL_JOB.path() == "/apis/longboat.dev/v1alpha1/rljobs"
    assert resources.RL_JOB.path("a", "x", "status") == "/apis/longboat.dev/v1alpha1/namespaces/a/rljobs/x/status"
    assert resources.CLUSTER_RL_RUNTIME.path("a", "x") == "/apis/longboat.dev/v1alpha1/clusterrlruntimes/x"
    assert resources.LEASE.api_version == "coordination.k8s.io/v1"
    assert resources.POD.api_version == "v1"


@pytest.mark.parametrize(
    ("code", "reason", "expected", "rejection"),
    [
        (400, "BadRequest", errors.BadRequestError, True),
        (401, "Unauthorized", errors.UnauthorizedError, False),
        (403, "Forbidden", errors.ForbiddenError, True),
        (404, "NotFound", errors.NotFoundError, True),
        (409, "Conflict", errors.ConflictError, True),
        (409, "AlreadyExists", errors.AlreadyExistsError, True),
        (410, "Expired", errors.GoneError, True),
        (415, "UnsupportedMediaType", errors.ApiError, True),
        (422, "Invalid", errors.InvalidError, True),
        (429, "TooManyRequests", errors.TooManyRequestsError, False),
        (500, "InternalError", errors.ServerError, False),
        (503, "ServiceUnavailable", errors.ServerError, False),
    ],
)
def test_answers_become_errors(code: int, reason: str, expected: type[errors.ApiError], rejection: bool) -> None:
    body = json.dumps({"kind": "Status", "code": code, "reason": reason, "message": "the server's words"}).encode()
    error = errors.error_from_response(code, body)
    assert type(error) is expected
    assert str(error) == "the server's words"
    assert errors.is_rejection(error) is rejection


def test_an_invalid_object_names_its_fields() -> None:
    causes = [{"reason": "FieldValueInvalid", "message": "Invalid value: -1", "field": "spec.rounds.steps"}]
    body = {"kind": "Status", "code": 422, "reason": "Invalid", "message": "m", "details": {"causes": causes}}
    error = errors.error_from_response(422, json.dumps(body).encode())
    assert error.causes == (errors.FieldCause("spec.rounds.steps", "Invalid value: -1"),)


def test_when_to_come_again() -> None:
    by_header = errors.error_from_response(429, b"slow down", "3")
    assert by_header.retry_after_seconds == 3.0
    assert by_header.message == "slow down"
    status = {"kind": "Status", "code": 429, "details": {"retryAfterSeconds": 2}}
    assert errors.error_from_status(status).retry_after_seconds == 2.0


def test_a_proxys_page_is_an_error_like_any_other() -> None:
    error = errors.error_from_response(502, b"<html>Bad Gateway</html>")
    assert isinstance(error, errors.ServerError)
    assert "Bad Gateway" in error.message


def test_silence_is_no_rejection() -> None:
    assert not errors.is_rejection(errors.TransportError("no answer"))


@pytest.mark.parametrize("text", [None, "", "text", "a: [b"], ids=["missing", "empty", "no map", "no YAML"])
async def test_an_unusable_kubeconfig_is_named(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "kubeconfig"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigurationError, match=rf"(?s){file}.*give --kubeconfig"):
        await load_configuration(file)


PROXY = "http://proxy.example.com:3128"


@pytest.mark.parametrize(
    ("no_proxy", "host", "proxy"),
    [
        ("", "https://10.96.0.1:443", PROXY),
        ("10.96.0.1", "https://10.96.0.1:443", None),
        ("localhost, 10.96.0.0/12", "https://10.96.0.1:443", None),
        ("10.96.0.0/12", "https://10.200.0.1:443", PROXY),
        ("10.96.0.0/12", "https://api.example.com:6443", PROXY),
        (".example.com", "https://api.example.com:6443", None),
        ("fd00::/8", "https://[fd00::1]:443", None),
        ("fd00::/8", "https://10.96.0.1:443", PROXY),
        ("10.96.0.0/33,nonsense/8", "https://10.96.0.1:443", PROXY),
    ],
)
async def test_a_proxy_of_the_environment_is_for_a_kubeconfig_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_proxy: str, host: str, proxy: str | None
) -> None:
    monkeypatch.setenv("https_proxy", PROXY)
    monkeypatch.setenv("no_proxy", no_proxy)
    file = tmp_path / "kubeconfig"
    cluster = {"name": "c", "cluster": {"server": host}}
    context = {"name": "c", "context": {"cluster": "c", "user": "c"}}
    users = [{"name": "c", "user": {"token": "t"}}]
    file.write_text(json.dumps({"clusters": [cluster], "contexts": [context], "users": users, "current-context": "c"}))
    assert (await load_configuration(file)).proxy == proxy
    cluster["cluster"]["proxy-url"] = "http://named.example.com:80"
    file.write_text(json.dumps({"clusters": [cluster], "contexts": [context], "users": users, "current-context": "c"}))
    assert (await load_configuration(file)).proxy == "http://named.example.com:80"


async def test_in_a_pod_there_is_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("HTTPS_PROXY", PROXY)

    def in_pod(configuration: Configuration) -> None:
        configuration.host = "https://10.96.0.1:443"

    monkeypatch.setattr(config, "load_incluster_config", in_pod)
    assert (await load_configuration(None)).proxy is None
