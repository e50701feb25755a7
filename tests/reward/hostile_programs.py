"""Responses that try to do harm, each with a probe that shows whether the grade after it is harmed.

A program is run by the most trusting reward function there can be: `exec` of the response, in the function's own process. It does its harm
if the grade after it isn't what it would have been alone, if it says itself that it got out (a score of 1), or if something of it
is left on the machine. All are bounded: they are run without a sandbox too.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

SEED = 7
# The argument of the `sleep` processes that programs leave; it differs between test processes, so that each finds only its own.
LEFT = f"1000.{os.getpid()}"
TRUSTING = """
import json
import os
import random

state = []
texts = {}

class Grader:
    grades = 0

def run(sample):
    scope = {"sample": sample, "state": state, "escaped": escaped, "Grader": Grader, "texts": texts}
    exec(sample.text, scope)
    return scope.get("score", 0.0)

def escaped(call, *arguments):
    try:
        call(*arguments)
    except OSError:
        return False
    return True
"""
# The honest response that is graded next. It calls what may have been replaced.
PROBE = """
import json, math, os, random, signal, sys, threading, time
fine = [json.loads('[1]') == [1], math.sqrt(4) == 2, len('ab') == 2, float('0.25') == 0.25, 'HARM' not in os.environ]
fine += [not state, not texts, not Grader.grades, threading.active_count() == 1, sys.gettrace() is None, os.getcwd() == os.environ['HOME']]
fine += [not os.listdir('.'), signal.getsignal(signal.SIGALRM) in (signal.SIG_DFL, None), signal.getitimer(signal.ITIMER_REAL)[0] == 0]
fine += [open('probe', 'w').close() is None, os.remove('probe') is None, sys.getrecursionlimit() == 1000, os.umask(0o077) == 0o077]
fine += [sample.ground_truth == 'truth', random.random() == random.Random(7).random(), not hasattr(sample, 'harm')]
score = 0.25 if all(fine) else 0.0
"""


@dataclass(frozen=True)
class Program:
    """Holds the text of a program; one that `hangs` never ends by itself."""

    text: str
    hangs: bool = False


def ways_out() -> dict[str, Program]:
    calls = {
        "an internet socket": "import socket; score = escaped(socket.socket)",
        "a Unix socket": "import socket; score = escaped(socket.socket, socket.AF_UNIX)",
        "a netlink socket": "import socket; score = escaped(socket.socket, socket.AF_NETLINK, socket.SOCK_RAW)",
        "a datagram socket pair": "import socket; score = escaped(socket.socketpair, socket.AF_UNIX, socket.SOCK_DGRAM)",
        # In a child, since the leader of a process group can't start a session.
        "a session of its own": "import os\nif (pid := os.fork()) == 0: os._exit(escaped(os.setsid))\nscore = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])",
        "a signal to its parent": "import os; score = escaped(os.kill, os.getppid(), 0)",
        "a signal to everybody": "import os; score = escaped(os.kill, -1, 0)",
        "another priority": "import os; score = escaped(os.setpriority, os.PRIO_PROCESS, 0, 19)",
        "its parent's memory": "import os; score = escaped(os.open, f'/proc/{os.getppid()}/mem', os.O_RDWR)",
        "its parent's environment": "import os; score = escaped(os.open, f'/proc/{os.getppid()}/environ', os.O_RDONLY)",
        "its parent's limits": "import resource, os; score = escaped(resource.prlimit, os.getppid(), resource.RLIMIT_CORE, (0, 0))",
        "a directory elsewhere": "import os; score = escaped(os.mkdir, f'/tmp/harm-{os.getpid()}')",
        "a file in shared memory": "import os; score = escaped(open, f'/dev/shm/harm-{os.getpid()}', 'w')",
        "a file beside its directory": "score = escaped(open, '../harm', 'w')",
        # None of it is used: a small machine doesn't have as much, and would refuse it without MAP_NORESERVE.
        "much memory": "import mmap; score = escaped(mmap.mmap, -1, 8 * 2**30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)",
    }
    return {name: Program(text) for name, text in calls.items()}


# What any process of a grade can do, for which it has to be killed or its answer refused.
ENDS = {
    "sleeping for ever": Program("import time; time.sleep(1e6)", hangs=True),
    "a deaf busy loop": Program(
        "import signal\nfor n in (1, 2, 10, 14, 15, 24): signal.signal(n, signal.SIG_IGN)\nwhile True:\n  try:\n    while True: pass\n"
        "  except BaseException: pass",
        hangs=True,
    ),
    "exiting": Program("import os; os._exit(3)"),
    "a segmentation fault": Program("import ctypes; ctypes.string_at(0)"),
    "killing itself": Program("import os; os.kill(os.getpid(), 9)"),
    "a fork bomb": Program("import os, time\nfor _ in range(4): os.fork()\ntime.sleep(1e6)", hangs=True),
    "a background process": Program(
        "import os, time\nif os.fork() == 0:\n  if os.fork() == 0:\n    time.sleep(1e6)\n  os._exit(0)"
    ),
    "a program in the background": Program(f"import subprocess; subprocess.Popen(['sleep', '{LEFT}'])"),
    "a garbled answer": Program("import os, time; os.write(3, b'\\xff' * 8); time.sleep(1e6)"),
    "a forged answer, twice": Program("import os\n{FORGED}\nfor _ in range(2): os.write(3, forged)\ntime.sleep(1e6)"),
    "closing the answer's pipe": Program("import os, time; os.close(3); time.sleep(1e6)"),
}

# What only a process that stays makes possible.
STAYS = {
    "a global variable": Program("state.append(sample.text)"),
    "a dictionary of a module": Program("texts[sample.prompt] = sample.text"),
    "an attribute of a class": Program("Grader.grades += 1"),
    "a replaced builtin": Program("import builtins; builtins.float = lambda value: 99.0"),
    "a replaced json.loads": Program("import json; json.loads = lambda text: [2]"),
    "a replaced math.sqrt": Program("import math; math.sqrt = lambda value: 3"),
    "a replaced module": Program(
        "import sys, types; sys.modules['math'] = types.SimpleNamespace(sqrt=lambda value: 3)"
    ),
    "the reward function replaced": Program(
        "import sys\nfor module in list(sys.modules.values()):\n"
        "  if getattr(module, 'run', None) is not None and hasattr(module, 'escaped'):\n"
        "    module.state = [1]; module.escaped = None"
    ),
    "the grader's own functions replaced": Program(
        "import sys\nfor name, module in list(sys.modules.items()):\n"
        "  if name.endswith(('graders.adapters', 'naive', '__main__')):\n"
        "    module.as_result = module._graded = module.graded = lambda *_: 1 / 0"
    ),
    "the environment": Program("import os; os.environ['HARM'] = '1'"),
    "the working directory": Program("import os; os.chdir('/')"),
    "the umask": Program("import os; os.umask(0)"),
    "a file in its directory": Program("open('left', 'w').write(sample.text)"),
    "a locked directory": Program("import os; os.mkdir('locked'); os.chmod('locked', 0)"),
    "all file descriptors": Program(
        "import os, resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))\n"
        "try:\n  while True: state.append(os.dup(0))\nexcept OSError: state.clear()"
    ),
    "memory, kept": Program(
        "import sys; sys.harm = [bytes([7]) * 2**20 for _ in range(200)]; sys.setrecursionlimit(900)"
    ),
    "a thread that stays": Program(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()"
    ),
    "a thread that answers later": Program(
        # Once the next grade has begun.
        "import os, random, threading\n{FORGED}\nrandom.seed(0)\nbefore = random.getstate()\ndef later():\n  while random.getstate() == before: pass\n"
        "  os.write(3, forged)\nthreading.Thread(target=later, daemon=True).start()"
    ),
    "an answer ahead": Program("import os\n{FORGED}\nos.write(3, forged); time.sleep(0.05)"),
    "a timer": Program("import signal; signal.setitimer(signal.ITIMER_REAL, 1e6)"),
    "a signal handler": Program("import signal\ndef late(*_): raise SystemExit\nsignal.signal(signal.SIGALRM, late)"),
    "a blocked signal": Program("import signal; signal.signal(signal.SIGALRM, signal.SIG_IGN)"),
    "a trace function": Program("import sys; sys.settrace(lambda *_: 1 / 0)"),
    "a lower recursion limit": Program("import sys; sys.setrecursionlimit(60)"),
    "a limit on files": Program(
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4))"
    ),
    "random numbers replaced": Program("import random; random.random = lambda: 0.5"),
    "a class of the library replaced": Program("import json; json.JSONDecoder.decode = lambda self, text, **_: [2]"),
    "a class of the grader's replaced": Program("type(sample).harm = True"),
    "the checks found in the frames": Program(
        "import sys, math\nframe = sys._getframe()\nwhile frame is not None:\n  for value in list(frame.f_locals.values()):\n"
        "    checks = getattr(getattr(value, '__self__', value), '_checks', None)\n"
        "    if isinstance(checks, list):\n      owner = getattr(value, '__self__', value)\n"
        "      owner._checks, owner._bindings = [], []\n"
        "  frame = frame.f_back\nmath.sqrt = lambda value: 3"
    ),
}

FORGED = (
    "import json, sys, time\nheader = json.dumps({'token': 0, 'outcome': {'kind': 'scored', 'score': 1.0, 'seconds': 0, 'message': '', "
    "'cpu_seconds': 0}}).encode()\nforged = len(header).to_bytes(4, 'big') + bytes(4) + header"
)


def programs() -> dict[str, Program]:
    templates = {**ways_out(), **ENDS, **STAYS}
    return {name: Program(each.text.replace("{FORGED}", FORGED), each.hangs) for name, each in templates.items()}


PROGRAMS = programs()
