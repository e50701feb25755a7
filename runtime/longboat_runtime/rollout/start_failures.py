"""Says why an engine didn't start, and whether it ever can. Pure, but for the output that is read.

Written against one version of vLLM, as `rollout.arguments` is: the places are its files and functions.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_runtime.rollout.engine import EngineDead
from longboat_runtime.tracebacks import RaisedError, cause_in, errors_in, formatted, sentence

# Errors of wrong values. The same values raise them again, unlike those of the surroundings: OSError, torch's out of memory and so on.
VALUE_ERRORS = frozenset(
    {
        "AssertionError",
        "AttributeError",
        "JSONDecodeError",
        "KeyError",
        "ModuleNotFoundError",
        "NotImplementedError",
        "StrictDataclassClassValidationError",
        "StrictDataclassFieldValidationError",
        "TypeError",
        "UnicodeDecodeError",
        "VLLMValidationError",
        "ValidationError",
        "ValueError",
    }
)
# vLLM's functions that only pass on that another process failed; that process has written the cause.
RELAYS = frozenset({"wait_for_engine_startup", "wait_for_ready", "get_response"})
# The outermost functions of vLLM's processes: an error that ended one, or a call to one, went through them.
PROCESS_ENTRIES = frozenset({"run_engine_core", "worker_main", "worker_busy_loop"})
# At most this much of the output of a start is read, from its end, in bytes.
OUTPUT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Place:
    """A part of vLLM that judges what the spec or the model says: errors of values raised there come again with every start.

    `file` is a part of the path, `function` empty for all functions. `field` is the one to change, `cure` a sentence without its full stop.
    """

    file: str
    function: str
    reason: Reason
    field: str | None
    cure: str


_MODEL_FIELD, _OTHER_MODEL = "spec.model.path", "Correct the model's directory, or use another model"
_PARALLELISM_FIELD, _OTHER_PARALLELISM = "spec.rollout.tensorParallel", "Choose another size"

# In the order in which they are looked for among the calls that led to an error.
PLACES = (
    Place(
        "/vllm/config/model.py",
        "verify_with_parallel_config",
        Reason.PARALLELISM_INVALID,
        _PARALLELISM_FIELD,
        _OTHER_PARALLELISM,
    ),
    Place(
        "/vllm/config/model.py",
        "_get_and_verify_max_len",
        Reason.MAX_LENGTH_EXCEEDED,
        "spec.model.maxLength",
        "Lower it, or leave it out",
    ),
    Place("/vllm/config/model.py", "_get_and_verify_dtype", Reason.SPEC_INVALID, "spec.model.dtype", "Choose another"),
    Place("/vllm/platforms/", "check_if_supports_dtype", Reason.SPEC_INVALID, "spec.model.dtype", "Choose another"),
    Place("/vllm/config/parallel.py", "", Reason.PARALLELISM_INVALID, _PARALLELISM_FIELD, _OTHER_PARALLELISM),
    Place("/vllm/config/scheduler.py", "", Reason.SPEC_INVALID, "spec.rollout.maxSequences", "Lower it"),
    Place("/vllm/config/cache.py", "", Reason.SPEC_INVALID, "spec.rollout.kvCache", "Choose another size"),
    Place("/vllm/config/model.py", "", Reason.MODEL_INVALID, _MODEL_FIELD, _OTHER_MODEL),
    Place("/vllm/transformers_utils/", "", Reason.MODEL_INVALID, _MODEL_FIELD, _OTHER_MODEL),
    Place("/vllm/model_executor/model_loader/", "", Reason.MODEL_INVALID, _MODEL_FIELD, _OTHER_MODEL),
    Place("/vllm/model_executor/models/registry.py", "", Reason.MODEL_INVALID, _MODEL_FIELD, _OTHER_MODEL),
    Place("/vllm/tokenizers/", "", Reason.MODEL_INVALID, _MODEL_FIELD, _OTHER_MODEL),
    Place("/vllm/renderers/", "", Reason.MODEL_INVALID, _MODEL_FIELD, _OTHER_MODEL),
    Place(
        "/vllm/v1/core/kv_cache_utils.py",
        "_check_enough_kv_cache_memory",
        Reason.KV_CACHE_TOO_SMALL,
        "spec.model.maxLength",
        "Lower it, or give an engine more memory: raise rollout.kvCache or rollout.deviceMemory if the spec has one, or "
        "rollout.tensorParallel",
    ),
    Place(
        "/vllm/engine/arg_utils.py",
        "create_engine_config",
        Reason.SPEC_INVALID,
        "spec.rollout",
        "Change what that names, in rollout or model",
    ),
)


def start_failure(error: BaseException, output: str) -> SpecProblem | EngineDead:
    """Returns what to raise instead of `error`, with which vLLM did not start; `output` is what its processes wrote meanwhile.

    SpecProblem if no engine with the same spec and model can ever start, otherwise EngineDead, after which another start is tried.
    """
    decisive = decisive_error(errors_in(formatted(error)), errors_in(output))
    place = judged_in(decisive) if decisive else None
    cause = sentence(decisive) if decisive else cause_in(error)
    if place is None:
        return EngineDead(f"it can't start: {cause}")
    return SpecProblem(place.reason, place.field, f"vLLM can't start an engine: {cause.rstrip('.')}. {place.cure}.")


def decisive_error(raised: list[RaisedError], written: list[RaisedError]) -> RaisedError | None:
    """Returns the error that kept an engine from starting; None if none is known.

    `raised` are the errors of the traceback with which the start failed, `written` those that vLLM's processes wrote. The rule: the
    last raised one, unless that only passes on that another process failed. Then it is the first that ended such a process and comes
    again with every start, else the first that ended one: others fail because their peer is gone.
    """
    last = raised[-1] if raised else None
    if last is None or not _calls(last) & RELAYS:
        return last
    ended = [error for error in written if _calls(error) & PROCESS_ENTRIES and not _calls(error) & RELAYS]
    return next((error for error in ended if judged_in(error)), None) or next(iter(ended), last)


def judged_in(error: RaisedError) -> Place | None:
    """Returns the place in which vLLM judged spec or model to be wrong; None if another start may succeed.

    The rule: the first of PLACES through which the error came, if its type says that a value is wrong. In two cases another type, or
    this one, means something else:

    * Transformers also raises OSError for what a model lacks. Its own ones have no number of the operating system and are raised by a
      statement; others come from a disk.
    * An architecture that vLLM has but can't inspect has failed in another process, perhaps for want of memory.
    """
    place = next((place for place in PLACES if _is_in(place, error)), None)
    if place is None:
        return None
    last = error.frames[-1]
    from_system = error.message.startswith("[Errno") or "(os error " in error.message
    if error.name in VALUE_ERRORS:
        inspected = last.function == "_raise_for_unsupported" and "failed to be inspected" in error.message
        return None if from_system or inspected else place
    states = last.line.startswith("raise ") and not from_system
    return place if states and error.name == "OSError" and "/transformers/" in last.file else None


def _is_in(place: Place, error: RaisedError) -> bool:
    return any(
        place.file in frame.file and (not place.function or frame.function.rpartition(".")[2] == place.function)
        for frame in error.frames
    )


def _calls(error: RaisedError) -> set[str]:
    return {frame.function.rpartition(".")[2] for frame in error.frames}


class Output:
    """What this process and its children have written since this was made, where that goes to files, as it does in Ray's actors."""

    def __init__(self) -> None:
        self._starts = {file: status.st_size for file, status in _written_files()}

    def text(self) -> str:
        """Returns the last `OUTPUT_BYTES` of each file; empty if output goes elsewhere, or can't be read."""
        texts = []
        for file, status in _written_files():
            with suppress(OSError), file.open("rb") as opened:
                opened.seek(max(self._starts.get(file, 0), status.st_size - OUTPUT_BYTES))
                texts.append(opened.read().decode(errors="replace"))
        return "\n".join(texts)


def _written_files() -> Iterator[tuple[Path, os.stat_result]]:
    """Yields the files to which standard output and standard error go, each once."""
    inodes = set()
    for descriptor in (1, 2):
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_ino not in inodes:
            inodes.add(status.st_ino)
            yield Path(f"/proc/self/fd/{descriptor}"), status
