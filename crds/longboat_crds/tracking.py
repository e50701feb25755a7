"""`spec.tracking`: where the job's metrics are shown besides its own files."""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from longboat_crds.base import LIST_TYPE, ApiModel, ReferenceName
from longboat_crds.expressions import constant, either, equals, field, present
from longboat_crds.rules import FieldError, Rule

# Keys of the Secrets: variables of the tools' clients.
WANDB_KEYS = ("WANDB_API_KEY",)
MLFLOW_KEYS = ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")

# Addresses carry no credentials (`user:password@`): everyone who may read the job would see them.
Url = Annotated[str, Field(pattern=r"^https?://[^\s/@]+(/[^\s@]*)?$", max_length=1024)]

RunName = Annotated[str, Field(min_length=1, max_length=128)]
Label = Annotated[str, Field(min_length=1, max_length=64)]


class WandbMode(StrEnum):
    """Online sends everything to the server as it happens; Offline writes files for `wandb sync` beside the checkpoints."""

    ONLINE = "Online"
    OFFLINE = "Offline"


class TrackerSecret(ApiModel):
    """A Secret of the job's namespace. Its keys are the tool's own names, so that no Secret made for something else can be used."""

    name: ReferenceName = Field(description="Name of the Secret.")


class WeightsAndBiasesSpec(ApiModel):
    """A run in Weights & Biases."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            either(equals(field("mode"), constant(WandbMode.OFFLINE.value)), present("secret")),
            "is required with mode Online: name a Secret of the job's namespace that holds the API key, or use mode Offline",
            "secret",
            FieldError.REQUIRED,
        ),
    )

    project: str = Field(
        min_length=1,
        max_length=128,
        pattern=r"^[^/\\#?%:]+$",
        description="The project; it is created if it isn't there.",
    )
    entity: str | None = Field(
        default=None,
        min_length=1,
        max_length=128,
        pattern=r"^[^/\\#?%:]+$",
        description="User or team. Default: that of the API key.",
    )
    name: RunName | None = Field(default=None, description="Name of the run. Default: the job's.")
    group: RunName | None = Field(default=None, description="Runs of one group are shown together.")
    tags: list[Label] = Field(
        default_factory=list, max_length=32, description="Tags of the run.", json_schema_extra={LIST_TYPE: "set"}
    )
    mode: WandbMode = WandbMode.ONLINE
    base_url: Url | None = Field(
        default=None, description="Address of a server of your own. Default: `https://api.wandb.ai`."
    )
    secret: TrackerSecret | None = Field(default=None, description="Its key is `WANDB_API_KEY`.")


class MlflowSpec(ApiModel):
    """A run in MLflow."""

    tracking_uri: Url = Field(description="Address of the tracking server, such as `https://mlflow.example.com`.")
    experiment: str = Field(
        min_length=1, max_length=256, description="Name of the experiment; it is created if it isn't there."
    )
    name: RunName | None = Field(default=None, description="Name of the run. Default: the job's.")
    tags: dict[str, Annotated[str, Field(max_length=500)]] = Field(
        default_factory=dict, max_length=32, description="Tags of the run."
    )
    secret: TrackerSecret | None = Field(
        default=None,
        description="Its keys are `MLFLOW_TRACKING_TOKEN`, or `MLFLOW_TRACKING_USERNAME` and `MLFLOW_TRACKING_PASSWORD`.",
    )


class TrackingSpec(ApiModel):
    """Trackers that get one record a step, the spec and, with `samples`, tables of samples. They never delay a step."""

    weights_and_biases: WeightsAndBiasesSpec | None = None
    mlflow: MlflowSpec | None = None
