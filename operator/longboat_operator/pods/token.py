"""The Secret that holds Ray's token. Pure: its value is made by whoever creates it."""

from __future__ import annotations

from longboat_operator.model import Object
from longboat_operator.pods.names import JobRef

TOKEN_KEY = "token"


def ray_token(job: JobRef, name: str) -> Object:
    """Immutable, without its value (64 hexadecimal digits under `token`)."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": job.metadata(name),
        "type": "Opaque",
        "immutable": True,
    }
