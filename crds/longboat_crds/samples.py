"""`spec.samples`: which responses are kept for people to read."""

from pydantic import Field

from longboat_crds.base import ApiModel


class SamplesSpec(ApiModel):
    """Files of responses for people to read, next to the checkpoints; `longboat samples` shows them. Without this, none are written.

    The Parquet file of a step has its prompts and responses with their scores, and whether they were trained, dropped or deferred.
    An edit takes effect at once: the file of the step under way may lack what was decided before.
    """

    every_steps: int = Field(
        default=10,
        ge=1,
        le=10_000_000,
        description="Steps from one file to the next; the first and the last step have one too.",
    )
    prompts: int | None = Field(
        default=None,
        ge=1,
        le=65_536,
        description="How many of a step's prompts a file has, each with all of its finished responses: one that was trained, one "
        "dropped and one deferred, those with the longest, the best and the worst response, and others by chance. "
        "Default: all prompts.",
    )
    keep: int = Field(
        default=10,
        ge=1,
        le=10_000,
        description="How many of the newest files to keep; older ones are removed when one is written.",
    )
