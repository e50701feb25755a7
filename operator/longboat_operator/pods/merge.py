"""Merges a pod template onto a pod, as Kubernetes' strategic merge patch does. Pure.

Rules (source: Kubernetes, "Strategic merge patch", and the patch keys of core/v1): maps are merged key by key, a null
removes the key; lists of things with an identity are merged by it, new ones are appended in order; any other list is
replaced. Where a thing is one of several kinds (a volume's source, an env's value, a probe's handler), naming another
kind replaces the old one instead of adding a second.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

# What identifies an item of these lists, wherever they occur in a pod template.
MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "resourceClaims": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
}

_HANDLERS = frozenset({"exec", "httpGet", "tcpSocket", "grpc", "sleep"})
_PROBES = frozenset({"livenessProbe", "readinessProbe", "startupProbe", "postStart", "preStop"})


class TemplateInvalid(ValueError):
    """A template doesn't have the form of a pod template; says where."""


def merge(base: Mapping[str, Any], patch: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Lays `patch` over `base`; returns the result and changes neither. `path` begins the place that an error names.

    Raises:
        TemplateInvalid: `patch` has a map or a list to merge where `base` has another value, or another value where `base` has a map, or
            anything but a list of identifiable items where such lists are merged.
    """
    merged = dict(base)
    for key, value in patch.items():
        place = f"{path}.{key}" if path else key
        old = merged.get(key)
        if value is None:
            merged.pop(key, None)
        elif key in MERGE_KEYS and (isinstance(old, list) or not isinstance(value, str)):
            # A label or a node selector may have one of these names too: its value is a text.
            merged[key] = _merge_items(key, old or [], value, place)
        elif isinstance(value, Mapping):
            if not isinstance(old, Mapping | None):
                raise TemplateInvalid(f"{place}: expected no map, got {value!r}")
            merged[key] = merge(_without_rivals(key, old or {}, value), value, place)
        elif isinstance(old, Mapping):
            raise TemplateInvalid(f"{place}: expected a map, got {value!r}")
        else:
            merged[key] = value
    return merged


def _merge_items(field: str, base: Any, patch: Any, place: str) -> list[Any]:
    identity = MERGE_KEYS[field]
    if not isinstance(patch, list):
        raise TemplateInvalid(f"{place}: expected a list, got {patch!r}")
    if not isinstance(base, list):
        raise TemplateInvalid(f"{place}: expected no list, got {patch!r}")
    merged = {item[identity]: dict(item) for item in base}
    for number, item in enumerate(patch):
        if not isinstance(item, Mapping) or not isinstance(item.get(identity), str | int):
            raise TemplateInvalid(f"{place}[{number}]: expected a map with {identity!r}, got {item!r}")
        old = merged.get(item[identity], {})
        merged[item[identity]] = merge(_without_rivals(field, old, item), item, f"{place}[{item[identity]}]")
    return list(merged.values())


def _without_rivals(field: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns `old` without the keys that exclude one of `new`."""
    rivals: Set[str] = frozenset()
    if field == "volumes":
        rivals = (old.keys() | new.keys()) - {"name"}
    elif field == "env":
        rivals = {"value", "valueFrom"}
    elif field in _PROBES:
        rivals = _HANDLERS
    named = {key for key in rivals if new.get(key) is not None}
    return {key: value for key, value in old.items() if key not in rivals - named} if named else old
