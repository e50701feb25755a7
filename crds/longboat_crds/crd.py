"""CustomResourceDefinitions of the three kinds. Pure."""

from dataclasses import dataclass
from typing import Any

from longboat_crds.base import GROUP, JOB_NAME_MAX_LENGTH, JOB_NAME_PATTERN, VERSION
from longboat_crds.fixed import transition_rules
from longboat_crds.objects import ClusterRLRuntime, RLJob, RLRuntime
from longboat_crds.schema import VALIDATIONS, Schema, json_schema, structural

CATEGORY = "ml"
SELECTABLE = (".spec.runtimeRef.name", ".status.phase")


@dataclass(frozen=True, slots=True)
class Column:
    """A printer column; `wide` ones show with `-o wide` only."""

    name: str
    path: str
    description: str
    type: str = "string"
    wide: bool = False

    def to_json(self) -> dict[str, Any]:
        """Returns an item of additionalPrinterColumns."""
        column = {"name": self.name, "type": self.type, "jsonPath": self.path, "description": self.description}
        return column | {"priority": 1} if self.wide else column


AGE = Column("Age", ".metadata.creationTimestamp", "Time since it was created.", "date")
JOB_COLUMNS = (
    Column("Phase", ".status.phase", "Where the job stands."),
    Column("Round", ".status.training.roundKind", "Kind of the last round: Short or Long."),
    Column("Step", ".status.training.step", "Optimizer steps committed.", "integer"),
    Column("Reward", ".status.training.reward", "Mean reward of the last step."),
    Column("Rollout", ".status.roles.rollout.readyText", "Rollout pods ready and desired."),
    Column("TP", ".status.training.tensorParallel", "Devices of an engine.", "integer"),
    Column("Reward-CPU", ".status.roles.reward.cpuText", "CPUs of the graders: used/total with spec.rewardCpu."),
    Column("Tok/s", ".status.training.tokensPerSecond", "Tokens trained per second, prompts included.", "integer"),
    AGE,
    Column("Version", ".status.training.weightVersion", "Step whose weights the engines serve.", "integer", wide=True),
    Column("Restarts", ".status.restarts", "Restarts of all roles.", "integer", wide=True),
    Column("Checkpoint", ".status.checkpoint.step", "Step of the newest checkpoint.", "integer", wide=True),
    Column("Runtime", ".spec.runtimeRef.name", "Runtime template.", wide=True),
    Column("Reason", ".status.reason", "Why the job is in its phase.", wide=True),
)
RUNTIME_COLUMNS = (Column("Image", ".spec.image", "Runtime image."), AGE)


def definitions() -> dict[str, dict[str, Any]]:
    """Returns every CustomResourceDefinition by the name of its file, without suffix."""
    return {
        "rljobs": job_definition(),
        "rlruntimes": runtime_definition(),
        "clusterrlruntimes": cluster_runtime_definition(),
    }


def job_definition() -> dict[str, Any]:
    """Returns the definition of RLJob, with status and scale subresources; the scale is that of rollout pods."""
    schema = _root(json_schema(RLJob))
    schema["properties"]["metadata"]["properties"] = {
        "name": {"type": "string", "pattern": JOB_NAME_PATTERN, "maxLength": JOB_NAME_MAX_LENGTH}
    }
    _drop_defaults(schema["properties"]["status"])
    schema[VALIDATIONS] = [*schema[VALIDATIONS], *transition_rules()]
    version = {
        "schema": {"openAPIV3Schema": schema},
        "additionalPrinterColumns": [column.to_json() for column in JOB_COLUMNS],
        "selectableFields": [{"jsonPath": path} for path in SELECTABLE],
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.rollout.replicas",
                "statusReplicasPath": ".status.roles.rollout.ready",
                "labelSelectorPath": ".status.selector",
            },
        },
    }
    return _definition("RLJob", "rljobs", "rlj", "Namespaced", version)


def runtime_definition() -> dict[str, Any]:
    """Returns the definition of RLRuntime."""
    return _definition("RLRuntime", "rlruntimes", "rlrt", "Namespaced", _runtime_version(RLRuntime))


def cluster_runtime_definition() -> dict[str, Any]:
    """Returns the definition of ClusterRLRuntime."""
    return _definition("ClusterRLRuntime", "clusterrlruntimes", "crlrt", "Cluster", _runtime_version(ClusterRLRuntime))


def _runtime_version(model: type[RLRuntime | ClusterRLRuntime]) -> dict[str, Any]:
    return {
        "schema": {"openAPIV3Schema": _root(json_schema(model))},
        "additionalPrinterColumns": [column.to_json() for column in RUNTIME_COLUMNS],
    }


def _root(schema: Schema) -> Schema:
    """Returns the structural schema of an object that needs a spec; its metadata is left to the API server."""
    result = structural(schema)
    result["properties"]["metadata"] = {"type": "object"}
    result["properties"]["apiVersion"]["description"] = "Version of this API."
    result["properties"]["kind"]["description"] = "Kind of the object."
    result["required"] = ["spec"]
    return result


def _drop_defaults(schema: Schema) -> None:
    """Removes all defaults from the schema of a status, in place: a field that nobody wrote is absent."""
    schema.pop("default", None)
    for item in schema.get("properties", {}).values():
        _drop_defaults(item)
    if "items" in schema:
        _drop_defaults(schema["items"])


def _definition(kind: str, plural: str, short_name: str, scope: str, version: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": scope,
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short_name],
                "categories": [CATEGORY],
            },
            "versions": [{"name": VERSION, "served": True, "storage": True, **version}],
        },
    }
