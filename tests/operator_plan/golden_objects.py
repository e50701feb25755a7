"""Every object the operator makes for a job, as YAML.

`python -m tests.operator_plan.golden_objects` writes what tests compare.
"""

import json
from pathlib import Path
from typing import Any

import yaml

from longboat_crds.base import Role
from longboat_crds.job import RLJobSpec
from longboat_crds.runtime import RLRuntimeSpec
from longboat_operator.model import DNS_PEERS
from longboat_operator.plan.templates import runtime_revision
from longboat_operator.pods.access import driver_account, driver_role, driver_role_binding, ray_token
from longboat_operator.pods.claim import checkpoint_claim, on_one_node
from longboat_operator.pods.names import JobRef
from longboat_operator.pods.network import (
    environment_network,
    head_service,
    job_network,
    read_dns_peers,
    reward_network,
)
from longboat_operator.pods.pod import build_pod
from longboat_operator.pods.roles import ROLES

GOLDEN = Path(__file__).parent / "golden"
JOB = JobRef("research", "sums", "5f0c2a1e-9a51-4a5e-8a5b-0f7c5f2f1c11")


def objects(case: str, job: JobRef = JOB) -> dict[str, list[Any]]:
    """Objects by the file they are kept in."""
    given = yaml.safe_load((GOLDEN / case / "in.yaml").read_text())
    spec = RLJobSpec.model_validate(given["job"])
    runtime = RLRuntimeSpec.model_validate(given["runtime"])
    peers = read_dns_peers(json.dumps(given["dnsPeers"])) if "dnsPeers" in given else DNS_PEERS
    token = job.ray_token("1f2e3d4c")
    one_node = on_one_node([spec.checkpoint.volume.access_mode])
    around = [
        runtime_revision(job, 1, runtime), driver_account(job), driver_role(job), driver_role_binding(job),
        head_service(job), job_network(job), reward_network(job, peers), checkpoint_claim(job, spec.checkpoint),
        ray_token(job, token), *([environment_network(job, peers)] if spec.environments else []),
    ]  # fmt: skip
    pods = {
        f"{role}-pod": [
            build_pod(job, spec, runtime, job.revision(1), role, place, 2, token=token, one_node=one_node)
            for place in ROLES[role].places(spec)
            if place.index == 0
        ]
        for role in Role
        if ROLES[role].places(spec)
    }
    return {"around": around, **pods}


def text(bodies: list[Any]) -> str:
    """As kept."""

    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    return yaml.dump_all(bodies, Dumper=Plain, sort_keys=False, width=120)


def main() -> None:
    """Writes all cases."""
    for case in sorted(path.name for path in GOLDEN.iterdir()):
        for name, bodies in objects(case).items():
            (GOLDEN / case / f"{name}.yaml").write_text(text(bodies))


if __name__ == "__main__":
    main()
