"""The pause image: one static binary, so its archive is written here rather than by a builder."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

from e2e.cluster.binaries import PAUSE
from e2e.cluster.paths import cache

NAME = "localhost/longboat-pause:1"


def archive() -> Path:
    """Returns the image's Docker archive, written when it isn't there; raises ClusterError when the binary isn't built."""
    binary = PAUSE.require()
    file = cache() / "images" / f"pause-{binary.parent.name}.tar"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        part.write_bytes(_docker_archive(binary.read_bytes()))
        part.rename(file)
    return file


def _docker_archive(binary: bytes) -> bytes:
    layer = _tar({"pause": binary})
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": ["/pause"], "User": "65535:65535"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [NAME], "Layers": ["layer.tar"]}]
    files = {"config.json": config, "manifest.json": manifest}
    return _tar({"layer.tar": layer} | {name: json.dumps(value).encode() for name, value in files.items()})


def _tar(files: dict[str, bytes]) -> bytes:
    """Packs files into a tar, executable, owned by root and with a fixed time: the same files in the same order give the same bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o755
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()
