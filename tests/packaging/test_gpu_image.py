"""What Triton, torch.compile and extensions need of the GPU image, as pods run it: user 10001 without privileges, a read-only root."""

import json
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.cluster.images import builder, catalogue

pytestmark = [pytest.mark.cluster, pytest.mark.extended]

STUB = Path(__file__).with_name("triton_stub.py")
RUNTIME = Path(__file__).parents[2] / "runtime"
# Mounts are the namespace's own; the image brings everything but the packages, which are those that are installed here.
CONTAINER = """
set -e
mount --bind $ROOT /mnt && mount -o remount,bind,ro /mnt
mount -t tmpfs tmpfs /mnt/tmp && mkdir /mnt/tmp/site /mnt/tmp/runtime
mount --bind $PACKAGES /mnt/tmp/site && mount --bind $RUNTIME /mnt/tmp/runtime
mount -t tmpfs -o uid=10001,gid=10001 tmpfs /mnt/home/longboat
mount -t proc proc /mnt/proc && mount --rbind /dev /mnt/dev
cp $STUB /mnt/tmp/stub.py
! touch /mnt/written 2> /dev/null
exec chroot /mnt setpriv --reuid 10001 --regid 10001 --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all \
  env -i HOME=/home/longboat PYTHONPATH=$IMPORTED "$@"
"""
# The check with which the image's build ends.
LIBRARIES = """
from pathlib import Path
from longboat_runtime.doctor.libraries import judge_libraries, linked
print(judge_libraries(linked(Path("/tmp/site"))))
"""

RunInImage = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def run_in_image() -> Iterator[RunInImage]:
    """Returns a function that runs a command in the image's system layers, in a container like a pod's."""
    built = catalogue.find("runtime-gpu-system").build()
    builder.ensure(built.ref, built.archive)
    with builder.unpacked(built.ref) as (root, environment):
        if not list(root.glob(f"usr/bin/python{sys.version_info.major}.{sys.version_info.minor}")):
            pytest.skip("this machine's release has another Python than the packages that are installed here")

        def run(*command: str, imported: str) -> subprocess.CompletedProcess[str]:
            variables = {
                "ROOT": str(root),
                "PACKAGES": sysconfig.get_path("purelib"),
                "RUNTIME": str(RUNTIME),
                "STUB": str(STUB),
                "IMPORTED": imported,
                "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            }
            namespace = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", CONTAINER, "sh"]
            settings = [f"{name}={value}" for name, value in environment.items()]
            return subprocess.run(
                [*namespace, *settings, *command], env=variables, capture_output=True, text=True, check=False
            )

        yield run


def test_triton_and_torch_find_compilers_and_caches_as_the_pods_user_on_a_read_only_root(
    run_in_image: RunInImage,
) -> None:
    done = run_in_image("python3", "/tmp/stub.py", imported="/tmp/site")
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout.splitlines()[-1])
    assert made["user"] == 10001
    assert made["module"].startswith("/home/longboat/.cache/triton/")
    assert made["kernel"] > 0
    assert made["cpp"] == 3


def test_extensions_find_their_libraries_in_the_images_system(run_in_image: RunInImage) -> None:
    done = run_in_image("python3", "-c", LIBRARIES, imported="/tmp/runtime")
    assert "Verdict.OK" in done.stdout, done.stdout + done.stderr


def test_nccl_finds_the_library_of_rdma(run_in_image: RunInImage) -> None:
    program = "from longboat_runtime.doctor.nccl import own_network; print(own_network().library)"
    done = run_in_image("python3", "-c", program, imported="/tmp/runtime:/tmp/site")
    assert done.stdout == "True\n", done.stderr
