"""What Triton and torch.compile need of the GPU image, as pods run it: user 10001 without privileges, a read-only root."""

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from e2e.cluster.images import builder, catalogue

pytestmark = [pytest.mark.cluster, pytest.mark.extended]

STUB = Path(__file__).with_name("triton_stub.py")
# Mounts are the namespace's own; the image brings everything but Triton.
CONTAINER = """
set -e
mount --bind $ROOT /mnt && mount -o remount,bind,ro /mnt
mount -t tmpfs tmpfs /mnt/tmp && mkdir /mnt/tmp/site && mount --bind $PACKAGES /mnt/tmp/site
mount -t tmpfs -o uid=10001,gid=10001 tmpfs /mnt/home/longboat
mount -t proc proc /mnt/proc && mount --rbind /dev /mnt/dev
cp $STUB /mnt/tmp/stub.py
! touch /mnt/written 2> /dev/null
exec chroot /mnt setpriv --reuid 10001 --regid 10001 --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all \
  env -i HOME=/home/longboat PYTHONPATH=/tmp/site "$@" python3 /tmp/stub.py
"""


def test_triton_and_torch_find_compilers_and_caches_as_the_pods_user_on_a_read_only_root() -> None:
    built = catalogue.find("runtime-gpu-system").build()
    builder.ensure(built.ref, built.archive)
    with builder.unpacked(built.ref) as (root, environment):
        if not list(root.glob(f"usr/bin/python{sys.version_info.major}.{sys.version_info.minor}")):
            pytest.skip("this machine's release has another Python than the Triton that is installed here")
        variables = {
            "ROOT": str(root),
            "PACKAGES": sysconfig.get_path("purelib"),
            "STUB": str(STUB),
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        }
        namespace = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", CONTAINER, "sh"]
        settings = [f"{name}={value}" for name, value in environment.items()]
        done = subprocess.run([*namespace, *settings], env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout.splitlines()[-1])
    assert made["user"] == 10001
    assert made["module"].startswith("/home/longboat/.cache/triton/")
    assert made["kernel"] > 0
    assert made["cpp"] == 3
