"""`manifest.json`: the file whose presence makes a checkpoint complete. Pure."""

from __future__ import annotations

import json
from typing import Literal

import xxhash
from pydantic import BaseModel, ConfigDict, Field, ValidationError

NAME = "manifest.json"


class ManifestInvalid(ValueError):
    """A manifest's text is not what was written."""


class FileEntry(BaseModel):
    """One file of the checkpoint: path relative to its directory, bytes, XXH3 (128 bits) of its content."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str
    size: int = Field(ge=0)
    checksum: str


class ManifestFile(BaseModel):
    """The content of the file. The rest of a checkpoint is in the files it lists."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = 1
    incarnation: int = Field(ge=0)
    step: int = Field(ge=0)
    files: tuple[FileEntry, ...]


def encode(manifest: ManifestFile) -> bytes:
    """Encodes the manifest as JSON text with a checksum of its content in front."""
    content = manifest.model_dump(mode="json")
    return json.dumps({"checksum": _checksum(content), "manifest": content}, indent=1).encode()


def decode(text: bytes) -> ManifestFile:
    """Reads what `encode` wrote. Raises ManifestInvalid."""
    try:
        outer = json.loads(text)
        if outer["checksum"] != _checksum(outer["manifest"]):
            raise ManifestInvalid("the manifest's checksum is wrong")
        return ManifestFile.model_validate(outer["manifest"])
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, ValidationError) as error:
        raise ManifestInvalid(f"the manifest can't be read: {error}") from error


def _checksum(content: object) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(content, sort_keys=True).encode())
