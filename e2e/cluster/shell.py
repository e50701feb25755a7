"""Running commands."""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from e2e.cluster.errors import ClusterError, CommandError

PACKAGES = {
    "apt-get": "apt",
    "buildah": "buildah",
    "containerd": "containerd",
    "ctr": "containerd",
    "debootstrap": "debootstrap",
    "ip": "iproute2",
    "iptables": "iptables",
    "nsenter": "util-linux",
    "runc": "runc",
    "setsid": "util-linux",
    "unshare": "util-linux",
}
"""Debian packages of programs, for the message of `require`."""


def run(
    argv: Sequence[str | Path],
    *,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> str:
    """Runs a command and returns its standard output.

    Raises:
        CommandError: it failed; the error holds its error output or, if that is empty, its output.
        ClusterError: it hasn't ended after `timeout` seconds.
    """
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(words, input=stdin, env=env, timeout=timeout, text=True, capture_output=True, check=False)
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"`{' '.join(words)}` hasn't ended after {timeout} s") from error
    if done.returncode != 0:
        raise CommandError(words, done.returncode, done.stderr or done.stdout)
    return done.stdout


def require(*programs: str) -> None:
    """Raises ClusterError if a program is missing; its message names all such, and how to install them."""
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        packages = sorted({PACKAGES.get(program, program) for program in missing})
        raise ClusterError(f"missing: {', '.join(missing)}; `make setup` installs the packages {', '.join(packages)}")
