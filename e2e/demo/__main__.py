"""`make demo`: a real job on a real Kubernetes, watched as a person would watch it."""

import argparse
import json
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from e2e.cluster.errors import ClusterError
from e2e.demo import report
from e2e.demo.platform import NAMESPACE, OwnCluster, Platform, TestCluster
from e2e.host_runtime import REPOSITORY
from e2e.quickstart import EXAMPLE

PICTURE = REPOSITORY / "build" / "demo" / "countdown.png"
RECORDS = REPOSITORY / "build" / "demo" / "metrics.jsonl"
JOB = "countdown"
READ_METRICS = """
from pathlib import Path
from longboat_runtime.metrics.record import read_records
for record in read_records(Path("/checkpoint")):
    print(record.to_line())
"""

# Matches a row; the column Round is empty until there is one.
_STARTED = re.compile(r"\S+ +\S+ +(Short|Long) +(?P<step>\d+)")

Object = dict[str, Any]


class DemoFailed(ClusterError):
    """A job of the demo failed; the message says why."""


def main() -> int:
    """Run the demo; returns the exit status."""
    options = _options()
    platform: Platform = TestCluster()
    images = (options.operator_image, options.graders_image, options.runtime_image)
    if any(images):
        if not all(images):
            print("give --operator-image, --graders-image and --runtime-image, or none of them", file=sys.stderr)
            return 2
        platform = OwnCluster(*images, options.access_mode)
    seconds: dict[str, float] = {}
    try:
        print("This will\n" + "\n".join(f"  - {line}" for line in platform.intentions()), flush=True)
        with _timed("cluster and chart", seconds):
            platform.prepare()
        with _timed("base model and data", seconds):
            build_base(platform)
        with _timed("job", seconds):
            run_job(platform, seconds)
        records = read_metrics(platform)
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    RECORDS.parent.mkdir(parents=True, exist_ok=True)
    RECORDS.write_text("".join(json.dumps(record) + "\n" for record in records))
    report.picture(records, PICTURE)
    print(f"\n{report.table(records)}\n")
    print(options.split + "  ".join(f"{name} {value:.0f} s" for name, value in seconds.items()))
    print(f"\npicture: {PICTURE}\nrecords: {RECORDS}\n\nTo look further:")
    print("\n".join(f"  {line}" for line in platform.remains(JOB)))
    return 0


def build_base(platform: Platform) -> None:
    """Run the example's own step that makes the base model, as a Job."""
    platform.kubectl("delete", "job", "quickstart-model", "--ignore-not-found")
    platform.kubectl("apply", "--server-side", "-k", str(EXAMPLE / "base"))
    _run_to_end(platform, "quickstart-model", platform.pod(["python", "/scripts/build_base.py", "/data/quickstart"]))


def run_job(platform: Platform, seconds: dict[str, float]) -> None:
    """Apply the RLJob and show it whenever its row changes. Raises DemoFailed unless it succeeds."""
    platform.kubectl("delete", "rljob", JOB, "--ignore-not-found", "--wait")
    platform.kubectl("delete", "pvc", f"{JOB}-checkpoint", "--ignore-not-found", "--wait")
    begun = time.monotonic()
    platform.kubectl("apply", "-f", str(EXAMPLE / "rljob.yaml"))
    print(
        f"$ kubectl apply -f {(EXAMPLE / 'rljob.yaml').relative_to(REPOSITORY)}\n$ kubectl get rljobs --watch",
        flush=True,
    )
    while not (phase := _follow(platform, seconds, begun)):
        print("the watch ended; it goes on", flush=True)
        platform.kubectl("get", "rljobs", JOB)  # raises if it ended because the cluster or the job is gone
    if phase == "Failed":
        status = json.loads(platform.kubectl("get", "rljob", JOB, "-o", "json"))["status"]
        failed = next(condition for condition in status["conditions"] if condition["type"] == "Failed")
        raise DemoFailed(f"the job failed: {failed['reason']}: {failed['message']}")


def _follow(platform: Platform, seconds: dict[str, float], begun: float) -> str | None:
    """Print the job's row whenever it changes, but for its age; returns the phase it ends in, None if the watch ends first."""
    shown = ""
    with platform.lines("get", "rljobs", JOB, "--watch") as rows:
        for row in rows:
            what, _, _age = row.rstrip().rpartition(" ")
            if what == shown:
                continue
            print(row.rstrip(), flush=True)
            shown = what
            if (started := _STARTED.match(row)) and int(started["step"]) >= 1:
                seconds.setdefault("apply to first step", time.monotonic() - begun)
            phase = row.split()[1]
            if phase in ("Succeeded", "Failed"):
                return phase
    return None


def read_metrics(platform: Platform) -> list[report.Record]:
    """Reads the job's records from its checkpoint claim, by a pod that mounts it. Raises DemoFailed if the pod fails."""
    pod = platform.pod(["python", "-c", READ_METRICS])
    pod["volumes"].append(
        {"name": "checkpoint", "persistentVolumeClaim": {"claimName": f"{JOB}-checkpoint", "readOnly": True}}
    )
    mount = {"name": "checkpoint", "mountPath": "/checkpoint", "readOnly": True}
    pod["containers"][0]["volumeMounts"].append(mount)
    return report.parse(_run_to_end(platform, "read-metrics", pod))


def _run_to_end(platform: Platform, name: str, pod: Object) -> str:
    """Run a pod as a Job and return what it printed. Raises DemoFailed with that if it fails."""
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"backoffLimit": 0, "template": {"spec": pod}},
    }
    platform.kubectl("delete", "job", name, "--ignore-not-found")
    platform.kubectl("create", "-f", "-", stdin=json.dumps(job))
    while True:
        status = json.loads(platform.kubectl("get", "job", name, "-o", "json")).get("status", {})
        if status.get("succeeded"):
            return platform.kubectl("logs", f"job/{name}")
        if status.get("failed"):
            raise DemoFailed(f"{name} failed:\n{platform.kubectl('logs', f'job/{name}')[-3000:]}")
        time.sleep(1)


@contextmanager
def _timed(name: str, seconds: dict[str, float]) -> Iterator[None]:
    begun = time.monotonic()
    print(f"\n=== {name}", flush=True)
    yield
    seconds[name] = time.monotonic() - begun


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument(
        "--split", metavar="TEXT", default="", help="durations of earlier stages, shown with the demo's own"
    )
    own = parser.add_argument_group("a cluster that you have (the current kubeconfig context)")
    own.add_argument("--operator-image", metavar="NAME:TAG", help="operator image the cluster can pull")
    own.add_argument("--graders-image", metavar="NAME:TAG", help="graders' image the cluster can pull")
    own.add_argument("--runtime-image", metavar="NAME:TAG", help="runtime image the cluster can pull")
    own.add_argument("--access-mode", default="ReadWriteMany", choices=["ReadWriteMany", "ReadWriteOnce"])
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
