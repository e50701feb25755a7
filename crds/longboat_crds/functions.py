"""Names the user's own functions: installed, in a file, or in a ConfigMap."""

from typing import Annotated

from pydantic import Field

from longboat_crds.base import ConfigMapFile

# `module:function`, or `/path/file.py:function`.
FunctionPath = Annotated[
    str, Field(max_length=512, pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$|^/[^:]+\.py:[A-Za-z_]\w*$")
]


class ConfigMapFunction(ConfigMapFile):
    """A function or class in a Python file kept in a ConfigMap of the job's namespace."""

    function: str = Field(
        min_length=1,
        max_length=128,
        pattern=r"^[A-Za-z_]\w*$",
        description="Name of the function or class in that file.",
    )
