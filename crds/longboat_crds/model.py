"""`spec.model`: the language model that is trained."""

from enum import StrEnum

from pydantic import Field

from longboat_crds.base import ApiModel, Path


class DType(StrEnum):
    """Number format of arithmetic in trainer and engines, and of the weights that they exchange. The trainer's own weights are Float32."""

    FLOAT32 = "Float32"
    BFLOAT16 = "BFloat16"
    FLOAT16 = "Float16"


class ModelSpec(ApiModel):
    """A Hugging Face causal language model as a directory that driver, rollout and trainer pods see at the same path."""

    path: Path = Field(description="Directory with config.json, weights (safetensors) and tokenizer.")
    dtype: DType = DType.BFLOAT16
    max_length: int | None = Field(
        default=None,
        ge=8,
        le=16_777_216,
        description="Longest prompt plus response, in tokens. Default: the model's own max_position_embeddings.",
    )
