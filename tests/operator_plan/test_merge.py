"""Merging a pod template onto a pod."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_operator.pods.merge import TemplateInvalid, merge

BASE = {
    "containers": [
        {
            "name": "trainer",
            "env": [{"name": "HOME", "value": "/home/longboat"}, {"name": "A", "value": "1"}],
            "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
            "readinessProbe": {"httpGet": {"path": "/readyz", "port": 6390}, "periodSeconds": 2},
            "args": ["agent", "trainer"],
        }
    ],
    "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "256Mi"}}],
    "securityContext": {"runAsNonRoot": True, "runAsUser": 10001, "env": "none"},
}


def trainer(merged: dict) -> dict:
    return next(c for c in merged["containers"] if c["name"] == "trainer")


def test_containers_env_and_mounts_are_merged_by_what_identifies_them() -> None:
    patch = {
        "containers": [
            {"name": "log-shipper", "image": "shipper:1"},
            {
                "name": "trainer",
                "resources": {"limits": {"nvidia.com/gpu": 8}},
                "env": [{"name": "A", "value": "2"}, {"name": "B", "value": "3"}],
                "volumeMounts": [{"name": "models", "mountPath": "/models"}],
            },
        ]
    }
    merged = merge(BASE, patch)
    assert [c["name"] for c in merged["containers"]] == ["trainer", "log-shipper"]
    assert [(e["name"], e["value"]) for e in trainer(merged)["env"]] == [
        ("HOME", "/home/longboat"),
        ("A", "2"),
        ("B", "3"),
    ]
    assert [m["mountPath"] for m in trainer(merged)["volumeMounts"]] == ["/tmp", "/models"]
    assert trainer(merged)["args"] == ["agent", "trainer"]


def test_lists_without_identity_are_replaced() -> None:
    assert trainer(merge(BASE, {"containers": [{"name": "trainer", "args": ["sleep"]}]}))["args"] == ["sleep"]


def test_another_kind_of_volume_env_or_probe_replaces_the_old_one() -> None:
    patch = {
        "containers": [
            {
                "name": "trainer",
                "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
                "readinessProbe": {"exec": {"command": ["true"]}},
            }
        ],
        "volumes": [{"name": "shm", "persistentVolumeClaim": {"claimName": "fast"}}],
    }
    merged = merge(BASE, patch)
    assert merged["volumes"] == [{"name": "shm", "persistentVolumeClaim": {"claimName": "fast"}}]
    assert "value" not in trainer(merged)["env"][1]
    assert trainer(merged)["readinessProbe"] == {"exec": {"command": ["true"]}, "periodSeconds": 2}


def test_the_same_kind_is_merged() -> None:
    merged = merge(BASE, {"volumes": [{"name": "shm", "emptyDir": {"sizeLimit": "2Gi"}}]})
    assert merged["volumes"][0]["emptyDir"] == {"medium": "Memory", "sizeLimit": "2Gi"}


def test_null_takes_away() -> None:
    assert merge(BASE, {"securityContext": {"runAsUser": None}})["securityContext"] == {
        "runAsNonRoot": True,
        "env": "none",
    }


def test_labels_may_have_the_names_of_lists() -> None:
    assert merge({"labels": {"env": "test"}}, {"labels": {"env": "production"}}) == {"labels": {"env": "production"}}


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ({"containers": {"name": "trainer"}}, "spec.containers: expected a list"),
        ({"containers": [{"image": "x"}]}, r"spec.containers\[0\]: expected a map with 'name'"),
        ({"containers": [{"name": "trainer", "env": [7]}]}, r"spec.containers\[trainer\].env\[0\]: expected a map"),
        ({"securityContext": "none"}, "spec.securityContext: expected a map"),
        ({"imagePullSecrets": 3}, "spec.imagePullSecrets: expected a list"),
        ({"containers": [{"name": "trainer", "args": {"a": 1}}]}, r"spec.containers\[trainer\].args: expected no map"),
        ({"securityContext": {"env": [{"name": "A"}]}}, "spec.securityContext.env: expected no list"),
    ],
)
def test_a_template_of_another_form_is_named_with_its_place(patch: dict, message: str) -> None:
    with pytest.raises(TemplateInvalid, match=message):
        merge(BASE, patch, "spec")


LEAVES = st.one_of(st.integers(0, 3), st.text("ab", max_size=2), st.booleans())
NAMED = st.lists(
    st.fixed_dictionaries({"name": st.sampled_from("abc")}, optional={"x": LEAVES, "y": LEAVES}),
    max_size=3,
    unique_by=lambda item: item["name"],
)
TREES = st.fixed_dictionaries(
    {},
    optional={"volumes": NAMED, "env": NAMED, "args": st.lists(LEAVES, max_size=2), "a": LEAVES,
              "m": st.dictionaries(st.sampled_from("pq"), LEAVES, max_size=2)},
)  # fmt: skip


@given(TREES, TREES)
def test_laws(base: dict, patch: dict) -> None:
    merged = merge(base, patch)
    assert merge(base, {}) == base
    assert merge({}, patch) == patch
    assert merge(merged, patch) == merged, "once is as good as twice"
    for key in ("volumes", "env"):
        names = [item["name"] for item in merged.get(key, [])]
        assert len(names) == len(set(names))
        assert set(names) == {item["name"] for tree in (base, patch) for item in tree.get(key, [])}
