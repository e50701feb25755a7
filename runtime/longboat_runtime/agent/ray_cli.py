"""Ray's command line without the command groups that we don't use.

    python -m longboat_runtime.agent.ray_cli start ...

Ray adds the commands of Serve, jobs and state to its command line where they can be imported. That import takes two thirds of what
`ray start` takes before it does anything, in every pod, and its memory stays as long as the pod. A head starts a server for Ray
Client where grpc can be imported, another process with an open port; our drivers are nodes of the cluster.

A node ends with whichever of its processes ends first. `ray start --block` takes one that ends by itself with status 0, or by SIGTERM,
for an effect of `ray stop`, and keeps waiting without it. But a raylet ends so when one of its agents has died, and a node without a
raylet never comes back.
"""

import os
import sys
from typing import Any

from longboat_runtime.agent.ray_node import bare_nodes

_UNUSED = ("ray.serve.scripts", "ray.dashboard.modules.job.cli", "ray.util.state.state_cli", "grpc")


def main() -> None:
    """Runs the command that the arguments name."""
    # A module that is None here can't be imported; Ray then leaves its commands out.
    sys.modules.update(dict.fromkeys(_UNUSED))  # type: ignore[arg-type]
    from ray._private.node import Node
    from ray.scripts.scripts import cli

    dead_processes = Node.dead_processes

    def end_with_any(node: Node) -> list[Any]:
        """Ends this node with any of its processes; `ray start --block` calls this every second."""
        dead: list[Any] = dead_processes(node)
        for name, process in dead:
            print(
                f"{name} has ended with status {process.returncode}: so does this Ray node", file=sys.stderr, flush=True
            )
            node.kill_all_processes(check_alive=False, allow_graceful=False)
            os._exit(1)
        return dead

    Node.dead_processes = end_with_any
    with bare_nodes():
        cli()


if __name__ == "__main__":
    main()
