"""`longboat`: everything that runs in a job's pods, and jobs without Kubernetes.

Nothing heavy is imported before a command is known.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from longboat_crds.incarnations import UNANSWERED_EXIT_CODE
from longboat_graders.commands import environments, graders
from longboat_runtime.agent.commands import app as agent

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Reinforcement-learning post-training of language models.",
)
app.add_typer(agent, name="agent")
app.command("graders")(graders)
app.command("environments")(environments)

# Exit status of a driver whose process was asked to end (128 + SIGTERM): no agent takes it for the end of the job.
_STOPPED = 143


@app.command("driver", hidden=True)
def driver(
    job: Annotated[str, typer.Option(help="Name of the RLJob.")],
    namespace: Annotated[str, typer.Option(help="Namespace of the RLJob.")],
    head: Annotated[str, typer.Option(help="Ray head of the job, host:port.")] = "127.0.0.1:6379",
    after_failure: Annotated[
        str | None, typer.Option(help="How the previous start in the same container failed.")
    ] = None,
) -> None:
    """Drives an RLJob to its end (an agent starts this)."""
    import asyncio
    import traceback

    from longboat_graders import prctl
    from longboat_runtime.driver.main import Ending, first_error
    from longboat_runtime.driver.pod import Unanswered, drive_in_pod
    from longboat_runtime.logs import configure
    from longboat_runtime.model_config import import_transformers_without_torch
    from longboat_runtime.tracebacks import cause_in

    import_transformers_without_torch()
    prctl.hide_memory()
    configure()
    try:
        ending = asyncio.run(drive_in_pod(job, namespace, head, after_failure))
    except Unanswered as error:
        typer.echo(f"driver failed: {error}", err=True)
        raise typer.Exit(UNANSWERED_EXIT_CODE) from None
    except Exception as error:  # noqa: BLE001 - told in one line, last
        traceback.print_exc()
        # The agent and the pod's status show the last line.
        typer.echo(f"driver failed: {cause_in(first_error(error))}", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"driver: {ending}", err=True)
    sys.exit(_STOPPED if ending is Ending.STOPPED else 0)


@app.command("run")
def run(
    file: Annotated[Path, typer.Argument(help="YAML file with one RLJob.", exists=True, dir_okay=False)],
    output: Annotated[
        Path | None, typer.Option(help="Directory of checkpoints, metrics and export [default: runs/NAME].")
    ] = None,
    config_map: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=DIRECTORY", help="Directory that stands for a ConfigMap of rewards."),
    ] = None,
    volume: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH=DIRECTORY", help="Directory that stands for what pods see at PATH, such as /data."),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over; what an earlier run has written moves to NAME.1, NAME.2, ...")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume even if model, tokenizer, data or rewards have changed.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show the log of driver, engines and trainer.")
    ] = False,
) -> None:
    """Runs an RLJob on this machine, without Kubernetes. Run again, it resumes from its newest checkpoint.

    If model, tokenizer, data or rewards have changed since, it says so and ends: --resume or --fresh then says what to do.

    Ctrl-C suspends it, once a step that is being computed is done; twice ends it at once. SIGTERM and SIGHUP save the last step and end it.
    """
    from longboat_runtime.local.run import run_file
    from longboat_runtime.logs import configure
    from longboat_runtime.model_config import import_transformers_without_torch

    import_transformers_without_torch()
    configure(quiet=not verbose)
    raise typer.Exit(
        run_file(file, output, config_map or [], volume or [], fresh=fresh, resume=resume, verbose=verbose)
    )


@app.command("episode")
def episode(
    file: Annotated[
        Path, typer.Argument(help="YAML file with one RLJob that has environments.", exists=True, dir_okay=False)
    ],
    row: Annotated[int, typer.Option(metavar="N", min=0, help="Row of the dataset, from 0 on.")] = 0,
    environment: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Environment of the job.", show_default="the one that plays the row"),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            help="Endpoint of OpenAI's API to play against, such as http://127.0.0.1:8000/v1; its key is OPENAI_API_KEY.",
            show_default="the job's own model, untrained",
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model to ask for there.")] = None,
    config_map: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=DIRECTORY", help="Directory that stands for a ConfigMap of environments."),
    ] = None,
    volume: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH=DIRECTORY", help="Directory that stands for what pods see at PATH, such as /data."),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Show long texts in full.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the log.")] = False,
) -> None:
    """Plays one episode of one row on this machine: shows its turns, what would be trained of them, its reward and its time.

    Ends with 1 if the episode would be lost, with the reason.
    """
    from longboat_runtime.local.episode import episode_file
    from longboat_runtime.logs import configure
    from longboat_runtime.model_config import import_transformers_without_torch

    import_transformers_without_torch()
    configure(quiet=not verbose)
    raise typer.Exit(episode_file(file, environment, row, url, model, config_map or [], volume or [], full=full))


@app.command("plan")
def plan(
    file: Annotated[
        Path,
        typer.Argument(
            help="YAML file with one RLJob, and maybe its runtime template, beside config.json.",
            exists=True,
            dir_okay=False,
        ),
    ],
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Directory with config.json.",
            show_default="spec.model.path, or the directory of FILE",
            exists=True,
            file_okay=False,
        ),
    ] = None,
    runtime: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="YAML file with the runtime template.",
            show_default="FILE",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    device: Annotated[str | None, typer.Option(metavar="79Gi", help="Memory of one GPU.")] = None,
) -> None:
    """Says what memory, shared memory and storage a job on GPUs takes, phase by phase, and whether it fits. Needs no GPU.

    Ends with 1 if something doesn't fit, and then names the cheapest change that does.
    """
    from longboat_runtime.plan.command import plan_file

    raise typer.Exit(plan_file(file, model, runtime, device))


@app.command("doctor")
def doctor(
    libraries: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Only check that `ldd` finds what the extensions below DIR need, such as site-packages.",
            exists=True,
            file_okay=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Says whether this pod, or this machine, has what its role needs: GPUs, driver, NCCL's paths, shared memory, volumes, Ray's head, clock.

    Ends with 1 if something is wrong. What is wrong or could be better has its cure in a line. In a pod: kubectl exec POD -- longboat doctor.
    """
    from longboat_runtime.doctor.command import check_libraries, diagnose

    raise typer.Exit(check_libraries(libraries, as_json=as_json) if libraries else diagnose(as_json=as_json))


@app.command("profile")
def profile(
    file: Annotated[Path, typer.Argument(help="YAML file with one RLJob.", exists=True, dir_okay=False)],
    output: Annotated[Path, typer.Option(help="File to write the profile to.", dir_okay=False)],
    volume: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH=DIRECTORY", help="Directory that stands for what pods see at PATH, such as /data."),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the log.")] = False,
) -> None:
    """Measures the step times of the job's engines, for each size within the bounds of rollout.parallelism.

    To be run where rollout pods run, on a machine with the devices of one.
    """
    from longboat_runtime.local.profile import profile_file
    from longboat_runtime.logs import configure
    from longboat_runtime.model_config import import_transformers_without_torch

    import_transformers_without_torch()
    configure(quiet=not verbose)
    raise typer.Exit(profile_file(file, output, volume or []))


@app.command("timeline")
def timeline(
    output: Annotated[
        Path,
        typer.Argument(help="The job's directory: the --output of `longboat run`, or the one on its checkpoint claim."),
    ],
    rounds: Annotated[
        str | None,
        typer.Option(metavar="FIRST-LAST", help="Rounds to show.", show_default="last period, or last 6 if fewer"),
    ] = None,
    png: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Picture to write.", show_default="OUTPUT/timeline.png without --trace"),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Trace to write, for https://ui.perfetto.dev.")
    ] = None,
) -> None:
    """Draws a job's rounds: its samples on their engines, what happened to them, training and publication."""
    from longboat_runtime.timeline.command import show

    raise typer.Exit(show(output, rounds, png, trace))


@app.command("simulate")
def simulate(
    output: Annotated[
        Path,
        typer.Argument(help="The job's directory: the --output of `longboat run`, or the one on its checkpoint claim."),
    ],
) -> None:
    """Simulates a recorded job's rounds with TailBatching and several values of rounds.promptOvercommit."""
    from longboat_runtime.local.simulate import compare_factors

    raise typer.Exit(compare_factors(output))


@app.command("samples")
def samples(
    target: Annotated[
        str,
        typer.Argument(
            metavar="DIR|JOB",
            help="Directory of the job, of `longboat run` or on its checkpoint claim; or an RLJob whose driver runs.",
        ),
    ],
    worst: Annotated[int | None, typer.Option(metavar="N", min=1, help="Only the N with the lowest score.")] = None,
    best: Annotated[int | None, typer.Option(metavar="N", min=1, help="Only the N with the highest score.")] = None,
    longest: Annotated[int | None, typer.Option(metavar="N", min=1, help="Only the N with the most tokens.")] = None,
    prompt: Annotated[
        str | None, typer.Option(metavar="EPOCH:ROW", help="Only this prompt, step by step; ROW alone: in all epochs.")
    ] = None,
    search: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Only those with this text in prompt or response, whatever its case."),
    ] = None,
    step: Annotated[
        str | None,
        typer.Option(metavar="N|all", help="A step.", show_default="newest; all for --prompt and --search"),
    ] = None,
    fate: Annotated[
        str | None,
        typer.Option(metavar="kept|dropped|deferred", help="Only those that were trained, dropped or put back."),
    ] = None,
    domain: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only those of this domain of the dataset.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="At most N.", show_default="10; all with --json")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Show long texts in full.")] = False,
    special: Annotated[bool, typer.Option("--special", help="Show special tokens in responses.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", help="Namespace of the RLJob.", show_default="kubectl's current one"),
    ] = None,
    terminal: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Shows responses that a job with `spec.samples` has written: prompts, scores, and what became of them."""
    from longboat_runtime.sample_files.command import Options, show

    options = Options(
        worst,
        best,
        longest,
        prompt,
        search,
        step,
        fate,
        domain,
        limit,
        full=full,
        special=special,
        json=as_json,
        terminal=terminal,
    )
    raise typer.Exit(show(target, namespace, options))


def main() -> None:
    """Runs the command line."""
    app()


if __name__ == "__main__":
    main()
