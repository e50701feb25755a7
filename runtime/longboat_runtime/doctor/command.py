"""`longboat doctor`: runs the checks and prints what they find."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path

import structlog

from longboat_runtime.doctor import clock, gpus, head, libraries, nccl, shared_memory, volumes
from longboat_runtime.doctor.finding import Finding, Verdict
from longboat_runtime.doctor.place import Place, own_place


def diagnose(*, as_json: bool) -> int:
    """Prints the findings of all checks of this place as they come; returns the exit status, 1 if something is wrong."""
    # Agents log what the head doesn't answer; here it is a finding.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    place = own_place()
    if not as_json:
        print(f"longboat {version('longboat')} in {place}", flush=True)
    return show(findings(place), as_json=as_json)


def findings(place: Place) -> Iterator[Finding]:
    """Yields the finding of each check, gathering its facts first."""
    begun = time.time() - time.monotonic()
    devices, network = gpus.own_gpus(), nccl.own_network()
    yield gpus.judge_devices(devices, place)
    yield gpus.judge_driver(devices)
    yield nccl.judge_in_pod(devices, network.variables)
    yield nccl.judge_between_pods(network, devices, place)
    yield shared_memory.judge_shared_memory(shared_memory.own_shared_memory(), place)
    for directory in volumes.directories(place, Path.cwd(), Path(tempfile.gettempdir()), Path.home()):
        yield volumes.judge_directory(directory, volumes.probed(directory))
    yield head.judge_head(asyncio.run(head.reach(place)), place)
    stepped = time.time() - time.monotonic() - begun
    yield clock.judge_clock(replace(clock.own_clock(), stepped=stepped), place)


def check_libraries(directory: Path, *, as_json: bool) -> int:
    """Prints which extensions below a directory lack a shared library; returns the exit status, 1 if one does."""
    return show([libraries.judge_libraries(libraries.linked(directory))], as_json=as_json)


def show(checked: Iterable[Finding], *, as_json: bool) -> int:
    """Prints findings, each with its cure in a second line, or as one JSON object a line; returns 1 if something is wrong."""
    verdicts = set()
    for finding in checked:
        verdicts.add(finding.verdict)
        if as_json:
            print(json.dumps(asdict(finding)), flush=True)
            continue
        print(f"{finding.verdict:<8} {finding.check}: {finding.text}")
        if finding.cure:
            print(f"{'':<8} cure: {finding.cure}")
        sys.stdout.flush()
    return 1 if Verdict.WRONG in verdicts else 0
