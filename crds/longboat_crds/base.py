"""Defines what API models share: camelCase keys, the refusal of unknown keys, cross-field rules and common scalar types. Pure."""

from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, ClassVar, Self, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from longboat_crds.rules import Rule

GROUP = "longboat.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

LIST_TYPE = "x-kubernetes-list-type"
LIST_MAP_KEYS = "x-kubernetes-list-map-keys"
PRESERVE_UNKNOWN = "x-kubernetes-preserve-unknown-fields"
# Marks a field that a release lacks: readers fill in its default, and the API server doesn't. It would add the field to stored jobs, and
# drivers of that release refuse a job with a field that they don't know.
READER_DEFAULT = "x-longboat-reader-default"

# The context in which pydantic checks a manifest; without it, objects that may have been stored long ago.
MANIFEST: Mapping[str, Any] = {"manifest": True}

# A Kubernetes resource.Quantity, written as a string such as "500m", "4" or "2Gi".
Quantity = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$", max_length=32)]

# A CPU quantity in whole millicores, such as "500m", "1.5" or "4".
CpuQuantity = Annotated[str, Field(pattern=r"^([0-9]+(\.[0-9]{1,3})?|[0-9]+m)$", max_length=16)]

# Names of pods, Services and volumes are built from the job's: a DNS label that begins with a letter.
JOB_NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
# The name of a pool is a part of its pods' names.
POOL_NAME_MAX_LENGTH = 12
# Names derived from a job's are DNS labels of at most 63 characters; that of a reward pod, here with 100 attempts, has the longest suffix
# of those that every job has.
_LONGEST_NUMBERS = len("-511-a99")
JOB_NAME_MAX_LENGTH = 63 - len("-reward-") - POOL_NAME_MAX_LENGTH - _LONGEST_NUMBERS
# What the names of a job and of an environment pool may have together, for the same reason.
JOB_AND_ENVIRONMENT_POOL_MAX_LENGTH = 63 - len("-environment-") - _LONGEST_NUMBERS

# A DNS label, such as the name of a reward.
ObjectName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length=1, max_length=63)]

# The name of a pool: a shorter DNS label.
PoolName = Annotated[
    str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length=1, max_length=POOL_NAME_MAX_LENGTH)
]

# The name of an object that somebody else made (a claim, a ConfigMap, a runtime template): a DNS subdomain.
ReferenceName = Annotated[
    str,
    Field(
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
        min_length=1,
        max_length=253,
    ),
]

ColumnName = Annotated[str, Field(min_length=1, max_length=128)]
Path = Annotated[str, Field(min_length=1, max_length=1024)]
Seed = Annotated[int, Field(ge=0, le=2**31 - 1)]
Seconds = Annotated[int, Field(ge=0, le=366 * 86_400)]

# A date and time as RFC 3339 text, the form the API server keeps.
Timestamp = Annotated[str, Field(json_schema_extra={"format": "date-time"})]

# A value whose inner structure the API server keeps as it is.
Opaque = Annotated[dict[str, Any], Field(json_schema_extra={PRESERVE_UNKNOWN: True})]


def list_map(key: str) -> dict[str, Any]:
    """Returns the extra schema of a list whose items are told apart by `key`: no two items may share it."""
    return {LIST_TYPE: "map", LIST_MAP_KEYS: [key]}


class FieldsModel(BaseModel):
    """Base of all API models but metadata. Values are immutable; JSON keys are camelCase; Python may use the fields' names.

    Unknown keys are errors. Checks each field alone. Statuses are read in every plan, where each call from pydantic into Python adds up.
    """

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)

    def to_json(self) -> dict[str, Any]:
        """Returns the value as it appears in a manifest: camelCase keys, fields that are None left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class ApiModel(FieldsModel):
    """Base of models that drop nulls, and check the rules across their fields and the lists whose items are told apart."""

    rules: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="before")
    @classmethod
    def _null_means_unset(cls, value: Any) -> Any:
        """Drops nulls: a null means that the field isn't given, as for the API server."""
        if isinstance(value, dict) and None in value.values():
            return {k: v for k, v in value.items() if v is not None}
        return value

    @model_validator(mode="after")
    def _obey(self, info: ValidationInfo) -> Self:
        """Raises the first rule that is broken, with the path of the field to change in the error's context.

        Rules for new objects apply if the context is `MANIFEST`. No two items of a list are the same, or have the same key, if the list's
        type in the schema says so.
        """
        model = type(self)
        if model.rules:
            scope = {"self": self.to_json()}
            for rule in model.rules:
                if not (rule.new_only and info.context is not MANIFEST) and not rule.holds.evaluate(scope):
                    raise PydanticCustomError("rule", "{message}", rule.broken_by(scope["self"]))
        for name, key_field in _distinct_lists(model):
            items = getattr(self, name) or ()
            keys = list(items) if key_field is None else [getattr(item, key_field) for item in items]
            for position, key in enumerate(keys):
                if key in keys[:position]:
                    field = model.model_fields[name].alias or name
                    where = {"message": f"{key!r} is given twice", "field": f"{field}[{position}]"}
                    raise PydanticCustomError("twice", "{message}", where)
        return self


@cache
def _distinct_lists(model: type[ApiModel]) -> tuple[tuple[str, str | None], ...]:
    """Returns the names of a model's lists without two equal items, each with the field that is the items' key; None: the item itself."""
    lists: list[tuple[str, str | None]] = []
    for name, info in model.model_fields.items():
        extra = cast("Mapping[str, Any]", info.json_schema_extra or {})
        if extra.get(LIST_TYPE) == "map":
            lists.append((name, extra[LIST_MAP_KEYS][0]))
        elif extra.get(LIST_TYPE) == "set":
            lists.append((name, None))
    return tuple(lists)


class Role(StrEnum):
    """The kinds of pod a job is made of. Only jobs with environments have environment pods."""

    DRIVER = "driver"
    ROLLOUT = "rollout"
    REWARD = "reward"
    TRAINER = "trainer"
    ENVIRONMENT = "environment"

    @property
    def has_pools(self) -> bool:
        """Whether its pods belong to pools of the spec, whose names are part of their places and names."""
        return self in {Role.REWARD, Role.ENVIRONMENT}


class ConfigMapFile(ApiModel):
    """A file kept in a ConfigMap of the job's namespace."""

    name: ReferenceName = Field(description="Name of the ConfigMap.")
    key: str = Field(
        min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$", description="Key of the file in the ConfigMap."
    )
