"""A process that has imported one reward function, and the children that it forks, which grade.

Started by `supervisor` as `python -m longboat_graders.zygote FD`, FD being its end of a pair of sockets that keep messages apart; the
function is named on its standard input. Samples go past it, from the server to its children, so that no child finds one in the memory
that it inherits. It is single-threaded, so forking is safe as long as the reward function's module starts no threads when it is imported.

Commands and answers are those of `forks`, with {fork, stays, watched} and {ended, status, cpu, output, crowded}. `crowded` says that a child
was ended for having too many processes and threads. A child asks its zygote before it starts one, through the kernel, so none grows unseen.

A child confines itself, and answers one request or one after the other. Requests and answers are frames on its socket: {token, seed} with
the sample as body; {token, outcome, leave}, where `leave` says why the process must go, such as for what the grade left behind; or
{refused}, with which it ends. An outcome is {kind, score, message}. A case runner's request has also `seconds`, the limit of each test
case, and `own`, their CaseLimit. `case_runner` says what else its outcome has. What a child calls for every grade touches memory that until
then it shares with its zygote, a page at a time: so it calls little.
"""

from __future__ import annotations

import gc
import json
import os
import select
import socket
import sys
from dataclasses import replace
from functools import partial

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_crds.reward_kinds import RewardKind
from longboat_graders import frames
from longboat_graders.adapters import load_scorer, takes_token_ids
from longboat_graders.forks import Child, Forks, begin, footprint, seed
from longboat_graders.leftovers import Baseline, sweep
from longboat_graders.messages import MESSAGE_CHARACTERS, OutcomeKind, RewardFunction
from longboat_graders.process_tree import parent, threads_of_group
from longboat_graders.result import GroupResult, RewardResult, RewardSample, plain_metrics
from longboat_graders.sandbox import Limits, Sandbox, limit_all
from longboat_graders.seccomp import Filter, can_ask, let_start, own_program, shared_program
from longboat_graders.watch import Origins, Watch

TYPE_CHECKING = False  # `typing` itself would be in the memory of every grader
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any, NoReturn

    from longboat_graders.adapters import GroupScorer, Scorer
    from longboat_graders.case_runner import CaseRunner

_OUTPUT_BYTES = 512
_NUMBER_BYTES = 8
# Where the kernel can't ask, the only limit of processes.
_PROCESSES_OF_USER_UNASKED = 512
_CASE_RUNNERS_FILES = 4096
# How often the zygote runs the code of its children beforehand, so that the interpreter has specialised all of it.
_REHEARSALS = 50
# A process that stays is replaced after this many grades.
MAX_GRADES = 4000
_SERVER_FD = 3
_NULL, _MOST_FILES = os.devnull, os.sysconf("SC_OPEN_MAX")
# Small enough that the C library doesn't map memory anew for each buffer.
_READ_BYTES = 64 * 1024


class _GraderChild(Child):
    __slots__ = ("crowded", "listener", "sandbox", "threads")

    def __init__(self, number: int, pid: int, sandbox: Sandbox) -> None:
        super().__init__(number, pid)
        self.sandbox = sandbox
        # By which the kernel asks about new processes and threads, -1 without one; and how many there are at most: some may have ended.
        self.listener, self.threads, self.crowded = -1, 1, False


class Zygote(Forks):
    """The loop of one zygote, which confines its process. `scratch` is its directory, in which children have one each."""

    def __init__(
        self,
        control: socket.socket,
        score: Scorer | GroupScorer | CaseRunner,
        origins: Origins,
        scratch: str,
        protected: Sequence[int],
    ) -> None:
        super().__init__(control)
        self._score, self._origins, self._scratch = score, origins, scratch
        self._protected = protected
        machine = os.uname().machine
        # A case runner's programs ask their launcher.
        kernel_asks = can_ask()
        asks = kernel_asks and callable(score)
        self._filters = {
            stays: Filter(own_program(protected, machine, alone=stays, asks=asks)) for stays in (False, True)
        }
        self._limits = Limits() if kernel_asks else Limits(processes_of_user=_PROCESSES_OF_USER_UNASKED)
        if not callable(score):
            # It sends files to its launcher.
            self._limits = replace(self._limits, open_files=_CASE_RUNNERS_FILES)
        # Children send here the listeners of their filters, with their numbers.
        self._listeners: socket.socket | None = None
        self._asking: socket.socket | None = None
        if asks:
            self._listeners, self._asking = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        limit_all(Limits() if callable(score) else score.limits)
        Filter(shared_program(machine)).install()
        self._by_listener: dict[int, _GraderChild] = {}
        # Sandboxes without a child, to be used again: making one costs as much as a fork.
        self._sandboxes: list[Sandbox] = []
        if self._listeners is not None:
            self._poll.register(self._listeners.fileno(), select.EPOLLIN)

    def _attend(self, ready: Mapping[int, int]) -> None:
        for fd, events in ready.items():
            if (child := self._by_listener.get(fd)) is not None:
                self._admit(child, events)
        if self._listeners is not None and self._listeners.fileno() in ready:
            self._listen()

    def _forked(self, number: int, server: int, command: Mapping[str, Any]) -> Child:
        sandbox = self._sandboxes.pop() if self._sandboxes else Sandbox(self._new_directory(), self._limits)
        stays, watched = command["stays"], command["watched"]
        calls = self._filters[stays]
        try:
            sandbox.prepare()
            pid = os.fork()
        except OSError:
            self._sandboxes.append(sandbox)
            raise
        if pid == 0:
            run_child(
                self._score,
                sandbox,
                calls,
                self._origins,
                self._protected,
                None if self._asking is None else partial(_hand_over, self._asking, number),
                server=server,
                stays=stays,
                watched=watched,
            )
        return _GraderChild(number, pid, sandbox)

    def _listen(self) -> None:
        """Takes the listener of a child that has installed its filter."""
        assert self._listeners is not None
        number, listeners, _, _ = socket.recv_fds(self._listeners, _NUMBER_BYTES, 1)
        child = self._children.get(int.from_bytes(number, "little"))
        if child is not None:
            try:
                [listener] = listeners
                self._poll.register(listener, select.EPOLLIN)
            except (OSError, ValueError):
                child.kill()  # nobody could answer it
            else:
                child.listener, self._by_listener[listener] = listener, child
                return
        for listener in listeners:
            os.close(listener)

    def _admit(self, child: _GraderChild, events: int) -> None:
        """Lets a child start a process or thread, or ends it if it had too many."""
        if not events & select.EPOLLIN:
            self._ignore(child)  # nothing of it is left
            return
        child.threads += 1
        if child.threads > self._limits.processes:
            child.threads = 1 + threads_of_group(child.pid, self._limits.processes)
        if child.threads <= self._limits.processes:
            let_start(child.listener)
            return
        child.crowded = True
        child.kill()
        self._ignore(child)

    def _ignore(self, child: _GraderChild) -> None:
        """Answers a child's questions no more."""
        if child.listener >= 0:
            self._poll.unregister(child.listener)
            del self._by_listener[child.listener]
            os.close(child.listener)
            child.listener = -1

    def _new_directory(self) -> str:
        """Names a directory that nobody can guess: Landlock doesn't keep a grade from changing the rights of another's."""
        return f"{self._scratch}/{os.urandom(16).hex()}"

    def _told_of(self, child: _GraderChild) -> Mapping[str, Any]:
        self._ignore(child)
        return {"output": child.sandbox.printed(_OUTPUT_BYTES), "crowded": child.crowded}

    def _removed(self, child: _GraderChild) -> bool:
        # Programs that lost their launcher: no group can be left.
        if not callable(self._score) and not self._end_strangers():
            return False
        if child.sandbox.clean():
            self._sandboxes.append(child.sandbox)
        else:
            child.sandbox.close()
        return True


# --- A child -----------------------------------------------------------------------------------------------------------


def run_child(
    score: Scorer | GroupScorer | CaseRunner,
    sandbox: Sandbox,
    calls: Filter,
    origins: Origins,
    protected: Sequence[int],
    ask: Callable[[int], None] | None,
    *,
    server: int,
    stays: bool,
    watched: bool,
) -> NoReturn:
    """Runs a child, which leads a process group, and never returns.

    `server` is its socket's file descriptor, `protected` are processes that no program may signal; `ask` is that of `Sandbox.enter`.

    A child that `stays` grades until a grade leaves something behind, at most MAX_GRADES times; any other, and a case runner, grades
    once. One that stays and is `watched` ends before it does what `watch` refuses, such as running code that came with a sample.
    """
    code = 1
    try:
        unconfined = None if callable(score) else _start_launcher(score, sandbox, protected)
        unconfined = unconfined or _locked_in(sandbox, calls, ask)
        _arrange_files(server, sandbox.output, None if callable(score) or unconfined else score.launcher_fd)
        if unconfined is not None:
            request, _ = next(_requests())
            _answer({"token": request["token"], "outcome": unconfined, "leave": "no sandbox"})
        elif stays and callable(score):
            _grade_on(score, origins, watched)
        else:
            request, sample = next(_requests())
            seed(request["seed"])
            _answer({"token": request["token"], "outcome": _outcome(score, request, _sample(sample))})
        os.read(_SERVER_FD, 1)  # until the server has measured the last grade, and closes its end
        code = 0
    finally:
        # Whatever happened, a child must never continue as a zygote.
        os._exit(code)


def _outcome(
    score: Scorer | GroupScorer | CaseRunner, request: Mapping[str, Any], sample: RewardSample | list[RewardSample]
) -> Mapping[str, Any]:
    if callable(score):
        return _graded(score, sample)
    assert isinstance(sample, RewardSample)
    try:
        return score.outcome(sample, request["seconds"], request["seed"], request["own"])
    except BaseException as error:  # noqa: BLE001 - also of tests that a case runner runs
        return _error(error)


def _grade_on(score: Scorer | GroupScorer, origins: Origins, watched: bool) -> None:
    baseline, output, flush = Baseline(origins), _Output(), sys.stdout.flush
    answer, seeded, graded, sampled, change, empty = _answer, seed, _graded, _sample, baseline.change, output.empty
    if watched:
        Watch(origins, _graded.__code__, _refuse).start()
    for grades, (request, sample) in enumerate(_requests(), start=1):
        seeded(request["seed"])
        outcome = graded(score, sampled(sample))
        flush()
        empty()
        leave_reason = change() or (f"{MAX_GRADES} grades" if grades == MAX_GRADES else None)
        answer({"token": request["token"], "outcome": outcome, "leave": leave_reason})
        if leave_reason is not None:
            return


class _Output:
    """The file that takes what a grade prints, for the message of a process that ends. It is emptied after each grade."""

    def __init__(self) -> None:
        self._fstat, self._truncate, self._seek = os.fstat, os.ftruncate, os.lseek

    def empty(self) -> None:
        if self._fstat(1).st_size:
            self._truncate(1, 0)
            self._seek(1, 0, os.SEEK_SET)


def _requests() -> Iterator[tuple[dict[str, Any], bytes]]:
    buffer, read = frames.FrameBuffer(), os.read
    while data := read(_SERVER_FD, _READ_BYTES):
        yield from buffer.feed(data)


def _answer(answer: dict[str, Any], encode: Any = frames.encode, write: Any = os.write) -> None:
    write(_SERVER_FD, encode(answer))


def _refuse(what: str, answer: Any = _answer, leave: Any = os._exit) -> None:
    """Answers with the refusal and ends the process at once: graded code can't catch that."""
    answer({"refused": what[:MESSAGE_CHARACTERS]})
    leave(1)


def _sample(body: bytes) -> RewardSample | list[RewardSample]:
    """Reads the sample of a request, or those of a group."""
    value = frames.from_json(body)
    if "responses" not in value:
        return RewardSample(**value)
    return [RewardSample(**value["row"], **response) for response in value["responses"]]


def _start_launcher(case_runner: CaseRunner, sandbox: Sandbox, protected: Sequence[int]) -> Mapping[str, Any] | None:
    """Starts the launcher before `_locked_in`, so that the case runner's own limits don't bind programs.

    Returns the error's outcome if that can't be done, else None.
    """
    try:
        os.setpgid(0, 0)
        case_runner.start(sandbox.directory, protected)
        limit_all(Limits(file_size=case_runner.limits.file_size))
    except OSError as error:
        return _error(error)
    return None


def _hand_over(asking: socket.socket, number: int, listener: int) -> None:
    """Sends the listener of a child's filter to the zygote."""
    socket.send_fds(asking, [number.to_bytes(_NUMBER_BYTES, "little")], [listener])


def _locked_in(sandbox: Sandbox, calls: Filter, ask: Callable[[int], None] | None) -> Mapping[str, Any] | None:
    """Enters the sandbox; returns the error's outcome if that can't be done, else None. Nothing of a response has been read by then."""
    try:
        sandbox.enter(calls, ask)
        if "tempfile" in sys.modules:
            sys.modules["tempfile"].tempdir = None  # type: ignore[attr-defined]
    except (OSError, ValueError) as error:
        return _error(error)
    return None


def _arrange_files(server: int, output: int, launcher: int | None) -> None:
    """Opens the standard streams, and moves sockets to fixed numbers that programs started from here don't inherit; closes all else."""
    duplicate = os.dup2
    duplicate(os.open(_NULL, os.O_RDONLY), 0)
    duplicate(output, 1)
    duplicate(output, 2)
    duplicate(server, _SERVER_FD, False)
    first = _SERVER_FD + 1
    if launcher is not None:
        duplicate(launcher, first, False)
        first += 1
    os.closerange(first, _MOST_FILES)


def rehearse() -> None:
    """Does in the zygote what a child does once it has a sample, the function aside.

    What Python and the C library change at the first calls of anything, each child would otherwise change in memory of its own.
    """
    sample = frames.to_json({"text": "", "prompt": "", "ground_truth": "", "columns": {}})
    for _ in range(_REHEARSALS):
        for request, body in frames.FrameBuffer().feed(frames.encode({"token": 2**61, "seed": 2**61}, sample)):
            seed(request["seed"])
            outcome = _graded(lambda _: RewardResult(0.5), _sample(body))
            frames.encode({"token": request["token"], "outcome": outcome})


def _graded(
    score: Any,
    sample: RewardSample | list[RewardSample],
    right: str = OutcomeKind.SCORED.value,
    wrong: str = OutcomeKind.WRONG_FORMAT.value,
    nothing: str = OutcomeKind.NOT_APPLICABLE.value,
) -> Mapping[str, Any]:
    """Returns the outcome of a call as `FunctionOutcome.from_json` reads it."""
    outcomes: list[dict[str, Any]] = []
    try:
        result = score(sample)
        group = result if isinstance(result, GroupResult) else None
        for each in [result] if group is None else group.results:
            if each is None:
                outcomes.append({"kind": nothing, "score": 0.0, "message": ""})
                continue
            message = each.message[:MESSAGE_CHARACTERS]
            outcomes.append(
                {"kind": right if each.format_ok else wrong, "score": float(each.score), "message": message}
            )
            if each.metrics:
                outcomes[-1]["metrics"] = plain_metrics(each.metrics)
        if group is None:
            return outcomes[0]
        return {"kind": right, "score": 0.0, "message": "", "metrics": group.metrics, "each": outcomes}
    # SystemExit and the like also come from graded code, and end nothing but this grade.
    except BaseException as error:  # noqa: BLE001
        return _error(error)


def _error(error: BaseException) -> Mapping[str, Any]:
    return {"kind": OutcomeKind.GRADER_ERROR.value, "score": 0.0, "message": describe(error)}


def describe(error: BaseException) -> str:
    """Describes the error and the line that raised it, in at most MESSAGE_CHARACTERS."""
    place, trace = "", error.__traceback__
    while trace is not None:
        place, trace = f" ({trace.tb_frame.f_code.co_filename} line {trace.tb_lineno})", trace.tb_next
    return f"{type(error).__name__}: {error}"[: MESSAGE_CHARACTERS // 2] + place[-MESSAGE_CHARACTERS // 2 :]


# --- Starting ----------------------------------------------------------------------------------------------------------


def _sources(function: RewardFunction, origins: Origins, field: str) -> dict[str, str]:
    """Returns what the loaded function is made of (see `sources`). A fork finds out, so that nothing of that stays in memory here."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            from longboat_graders.sources import sources

            with open(writer, "wb") as file:
                file.write(json.dumps(sources(function, origins)).encode())
        except BaseException:  # noqa: BLE001 - this process ends here
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        answer = file.read()
    os.waitpid(pid, 0)
    if not answer:
        raise SpecProblem(
            Reason.REWARD_FUNCTION_INVALID,
            field,
            "Its files can't be read once it is loaded. The graders' log says why.",
        )
    digests: dict[str, str] = json.loads(answer)
    return digests


def main(fd: int) -> None:
    """Reads the request to load a function, answers, and forks."""
    control, request = begin(fd)
    origins = Origins({os.path.dirname(path) for path in (_package("longboat_graders"), _package("longboat_crds"))})
    function = RewardFunction.from_json(request["function"])
    score: Scorer | GroupScorer | CaseRunner
    token_ids = False
    try:
        if function.kind is RewardKind.SANDBOX:
            # Imported here, since other graders needn't hold it in memory.
            from longboat_graders.case_runner import CaseRunner

            score = CaseRunner(
                function, request["field"], [request["config_maps"], os.path.dirname(request["scratch"])]
            )
        else:
            score = load_scorer(function, request["field"], request["config_maps"])
            token_ids = takes_token_ids(score, function)
        sources = _sources(function, origins, request["field"])
    except SpecProblem as problem:
        control.sendall(json.dumps([{"problem": list(problem.args)}]).encode())
        return
    if "numpy" in sys.modules:
        # It imports this at first use, which would be in a grade, with random numbers that nobody seeds.
        import numpy.random  # noqa: F401
    rehearse()
    sweep(request["scratch"])
    gc.collect()
    gc.freeze()
    control.sendall(json.dumps([{"loaded": footprint(), "token_ids": token_ids, "sources": sources}]).encode())
    # The parent of the server is the guard of a run without Kubernetes; in a namespace it has none.
    protected = {1, parent(os.getppid()), os.getppid(), os.getpid()} - {0}
    Zygote(control, score, origins, request["scratch"], sorted(protected)).run()


def _package(name: str) -> str:
    return str(sys.modules[name].__file__)


if __name__ == "__main__":
    main(int(sys.argv[1]))
