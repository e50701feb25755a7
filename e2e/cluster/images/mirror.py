"""The Debian archive that this machine itself installs from."""

from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.errors import ClusterError
from e2e.cluster.shell import run


@dataclass(frozen=True)
class Mirror:
    """An archive and the release in it, as debootstrap takes them."""

    uri: str
    release: str


def installed_from() -> Mirror:
    """Returns the first archive of the running release that apt knows; raises ClusterError if it knows none."""
    release = _os_release()["VERSION_CODENAME"]
    wanted = ["--format", "$(REPO_URI) $(CODENAME) $(COMPONENT)", "Created-By: Packages"]
    for line in run(["apt-get", "indextargets", *wanted]).splitlines():
        uri, codename, component = line.split()
        if codename == release and component == "main":
            return Mirror(uri, release)
    raise ClusterError(
        f"apt knows no archive of release {release!r}: see /etc/apt/sources.list.d, run `apt-get update`"
    )


def _os_release() -> dict[str, str]:
    lines = Path("/etc/os-release").read_text().splitlines()
    return {key: value.strip('"') for key, _, value in (line.partition("=") for line in lines) if key}
