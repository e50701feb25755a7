"""Ray's command line without its groups that we don't use.

    python -m longboat_runtime.agent.ray_cli start ...

Ray adds the commands of Serve, jobs and state to its command line where they can be imported. That import takes two thirds of what
`ray start` takes before it does anything, in every pod, and its memory stays as long as the pod. A head starts a server for Ray
Client where grpc can be imported, another process with an open port; our drivers are nodes of the cluster.
"""

import sys

_UNUSED = ("ray.serve.scripts", "ray.dashboard.modules.job.cli", "ray.util.state.state_cli", "grpc")


def main() -> None:
    """Runs the command that the arguments name."""
    # What stands here as None can't be imported; Ray then leaves the commands out.
    sys.modules.update(dict.fromkeys(_UNUSED))  # type: ignore[arg-type]
    from ray.scripts.scripts import cli

    cli()


if __name__ == "__main__":
    main()
