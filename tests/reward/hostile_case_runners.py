"""Hostile programs that want a grade that they don't deserve, or none to be given: a name and the program's text, by class."""

from __future__ import annotations

from collections.abc import Iterator

from tests.reward.hostile_limits import LEFT

_WRONG = "def square(x):\n    return 0\n"


def forging() -> Iterator[tuple[str, str]]:
    """An end that looks as if all was well."""
    exits = {
        "os._exit": "import os\nos._exit(0)",
        "sys.exit": "import sys\nsys.exit(0)",
        "SystemExit": "raise SystemExit",
        "quit": "import site\nraise SystemExit(0)",
        "an exit code by a signal handler": "import os, signal\nsignal.signal(signal.SIGALRM, lambda *_: os._exit(0)); signal.setitimer(signal.ITIMER_REAL, 0.01); signal.pause()",
        "a replaced program": "import os\nos.execvp('true', ['true'])",
    }
    for name, text in exits.items():
        yield f"{name}, at once", f"{_WRONG}\n{text}"
        body = "\n".join(f"    {line}" for line in text.splitlines())
        yield f"{name}, when called", f"def square(x):\n{body}"
    yield "an exit code at exit", f"import atexit, os\natexit.register(os._exit, 0)\n{_WRONG}"
    yield "an exit code by a hook", f"import os, sys\nsys.excepthook = lambda *_: os._exit(0)\n{_WRONG}"
    yield (
        "an exit code in a thread",
        f"import os, threading\nthreading.Timer(0.0, os._exit, (0,)).start()\nimport time; time.sleep(1e6)\n{_WRONG}",
    )
    yield (
        "the summary of passed tests",
        f"import os\nprint('3 passed in 0.01s\\nOK\\nHARM', flush=True)\nos._exit(0)\n{_WRONG}",
    )


def patching() -> Iterator[tuple[str, str]]:
    """Answers, comparisons and tests that aren't what they seem."""
    equal = "class Equal:\n    def __eq__(self, other): return True\n    def __hash__(self): return 0\n"
    yield "an object that equals everything", f"{equal}def square(x): return Equal()"
    yield (
        "a number that equals everything",
        "class Equal(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\ndef square(x): return Equal(0)",
    )
    yield (
        "a text that equals everything",
        "class Equal(str):\n    def __eq__(self, other): return True\n    __hash__ = str.__hash__\ndef square(x): return Equal()",
    )
    yield (
        "a list that equals everything",
        "class Equal(list):\n    def __eq__(self, other): return True\n    __hash__ = None\ndef square(x): return Equal()",
    )
    yield (
        "a fraction that equals everything",
        "class Equal(float):\n    def __eq__(self, other): return True\n    __hash__ = float.__hash__\ndef square(x): return Equal(0)",
    )
    yield (
        "an object that equals everything from the right",
        f"{equal.replace('__eq__(self', '__ne__(self', 0)}def square(x): return Equal()",
    )
    yield (
        "the test, found in the frames",
        (
            "import sys\ndef square(x):\n    frame = sys._getframe(1)\n    while frame is not None:\n        if 'check' in frame.f_globals:\n"
            "            frame.f_globals['check'] = lambda candidate: None\n        frame = frame.f_back\n    raise SystemExit(0)"
        ),
    )
    yield (
        "the answers, found in the test's code",
        (
            "import sys\ndef square(x):\n    frame = sys._getframe(1)\n    while frame is not None:\n        constants = [c for c in frame.f_code.co_consts if isinstance(c, int)]\n"
            "        if x in constants and frame.f_code.co_name == 'check':\n            return constants[constants.index(x) + 1]\n        frame = frame.f_back\n    return 9 if x == 0 else 0"
        ),
    )
    yield (
        "the answers, found in memory",
        (
            "import gc\ndef square(x):\n    for value in gc.get_objects():\n        code = getattr(value, '__code__', None)\n        if getattr(code, 'co_name', '') == 'check':\n"
            "            constants = [abs(c) for c in code.co_consts if isinstance(c, int)]\n            if abs(x) in constants: return constants[constants.index(abs(x)) + 1]\n    return 0"
        ),
    )
    yield (
        "the comparison, replaced by a trace function",
        (
            "import os, sys\ndef trace(frame, event, argument):\n    if frame.f_code.co_name == 'check': os._exit(0)\nsys.settrace(trace)\n"
            + _WRONG
        ),
    )
    yield (
        "the error, replaced",
        "import builtins, os\nclass Quiet(Exception):\n    def __init__(self, *_): os._exit(0)\nbuiltins.AssertionError = Quiet\nimport sys\nsys.excepthook = lambda *_: os._exit(0)\n"
        + _WRONG,
    )
    yield (
        "the output, replaced",
        "import os, sys\nclass Out:\n    def write(self, text): os._exit(0)\n    def flush(self): os._exit(0)\nsys.stdout = sys.stderr = Out()\n"
        + _WRONG,
    )
    yield (
        "the exit, replaced",
        "import os, sys\nsys.excepthook = lambda *_: os._exit(0)\nos.abort = sys.exit = lambda *_: os._exit(0)\n"
        + _WRONG,
    )
    yield (
        "json, replaced",
        "import json, os\njson.dumps = json.loads = lambda *_, **__: os._exit(0)\nimport atexit\natexit.register(os._exit, 0)\n"
        + _WRONG,
    )
    yield (
        "builtins, replaced",
        "import atexit, builtins, os\nbuiltins.print = builtins.repr = builtins.isinstance = lambda *_: True\natexit.register(os._exit, 0)\n"
        + _WRONG,
    )
    yield (
        "the tests' name, taken",
        "import atexit, os\ndef check(candidate): pass\nsquare = check\natexit.register(os._exit, 0)",
    )


def deceiving_pytest() -> Iterator[tuple[str, str]]:
    """Answers to pytest, of tests that import the program."""
    calls = {
        "an exit code": "import os; os._exit(0)",
        "pytest's exit": "import pytest; pytest.exit('done', 0)",
        "a skipped test": "import pytest; pytest.skip('done')",
        "unittest's skipped test": "import unittest; raise unittest.SkipTest",
        "an expected failure": "import pytest; pytest.xfail('done')",
        "an error that is a skipped test by name": "import _pytest.outcomes; raise type('Skipped', (_pytest.outcomes.Skipped,), {})",
        "an object that equals everything": "return type('Equal', (), {'__eq__': lambda *_: True, '__hash__': lambda _: 0})()",
        "a number that equals everything": "return type('Equal', (int,), {'__eq__': lambda *_: True, '__hash__': lambda _: 0})(0)",
        "the answer, found in the frames": "import sys; frame = sys._getframe(1); found = [c for c in frame.f_code.co_consts if isinstance(c, int)]; "
        "return frame.f_locals.get('expected') or (found[found.index(x) + 1] if x in found else 0)",
    }
    for name, text in calls.items():
        yield name, f"def square(x): {text}"
    yield "an exit code, at once", f"import os\nos._exit(0)\n{_WRONG}"
    yield "an exit code at exit", f"import atexit, os\natexit.register(os._exit, 0)\n{_WRONG}"
    yield "an exit of whoever looks for a function", "def __getattr__(name): raise SystemExit(0)"
    yield (
        "tests that aren't run",
        f"import _pytest.python\n_pytest.python.Function.runtest = lambda self: None\n{_WRONG}",
    )
    yield (
        "reports without failures",
        f"import _pytest.reports\n_pytest.reports.TestReport.failed = property(lambda self: False)\n{_WRONG}",
    )
    yield (
        "errors without the word",
        f"import _pytest.runner\n_pytest.runner.call_and_report = lambda *_, **__: None\n_pytest.runner.runtestprotocol = lambda *_, **__: []\n{_WRONG}",
    )
    yield (
        "the answers, found in the file",
        (
            "import os, re\nfound = {}\nfor top in ('.', '../tests', '..', '../../tests'):\n    try: text = open(f'{top}/test_solution.py').read()\n"
            "    except OSError: continue\n    for x, y in re.findall(r'\\((-?\\d+)(?:, |\\) == )(\\d+)', text): found[int(x)] = int(y)\n"
            "def square(x): return found.get(x, 0)"
        ),
    )


def endless_calls() -> Iterator[tuple[str, str]]:
    """A function that doesn't return."""
    yield "a loop", "def square(x):\n    while True: pass"
    yield "an endless sum", "def square(x): return sum(iter(int, 1))"
    yield "sleep, when it is looked for", "def __getattr__(name): time.sleep(1e6)"


def leaving_calls() -> Iterator[tuple[str, str]]:
    """A function that leaves a process."""
    sleep = f"os.execvp('sleep', ['sleep', '{LEFT}'])"
    yield "a process", f"def square(x):\n    if os.fork() == 0: {sleep}\n    return x * x"
    yield "a process of its module", f"if os.fork() == 0: {sleep}\ndef square(x): return x * x"


def values() -> Iterator[tuple[str, str]]:
    """Values that a case runner can't handle, or that handle it."""
    yield (
        "code in a pickle",
        "import os\nclass Evil:\n    def __reduce__(self): return os._exit, (0,)\ndef square(x): return Evil()",
    )
    yield (
        "code in a pickled list",
        "import os\nclass Evil:\n    def __reduce__(self): return os._exit, (0,)\ndef square(x): return [1, {'a': Evil()}]",
    )
    yield (
        "a system command in a pickle",
        "class Evil:\n    def __reduce__(self):\n        import os\n        return os.kill, (os.getpid(), 9)\ndef square(x): return Evil()",
    )
    for depth in (3_000, 100_000):
        yield (
            f"a list {depth} deep",
            f"def square(x):\n    value = []\n    for _ in range({depth}): value = [value]\n    return value",
        )
        yield (
            f"a dictionary {depth} deep",
            f"def square(x):\n    value = {{}}\n    for _ in range({depth}): value = {{'a': value}}\n    return value",
        )
    yield "a list that holds itself", "def square(x):\n    value = []\n    value.append(value)\n    return value"
    yield "a long number", "def square(x): return 10 ** 6000"
    yield "a long text", "def square(x): return 'x' * (8 * 2**20)"
    yield "an endless generator", "def square(x):\n    while True: yield 9"
    yield "endless recursion", "import sys\nsys.setrecursionlimit(10**8)\ndef square(x): return square(x) + 1"
    yield (
        "an error that has no text",
        "class Evil(Exception):\n    def __str__(self): raise Evil\n    def __reduce__(self): import os; return os._exit, (0,)\ndef square(x): raise Evil",
    )


def traps() -> Iterator[tuple[str, str]]:
    """Files that a case runner can't read, or not remove."""
    yield "a FIFO for an answer", "os.mkfifo('answer')"
    yield "a link to a secret for an answer", "os.symlink('../secret', 'answer')"
    yield "a device for an answer", "os.symlink('/dev/zero', 'answer')"
    yield "a directory for an answer", "os.mkdir('answer')"
    yield (
        "a locked directory",
        "open('answer', 'w').write('1')\nos.mkdir('d'); open('d/f', 'w').close(); os.chmod('d', 0)",
    )
    yield (
        "a locked tree",
        "open('answer', 'w').write('1')\nfor n in range(5): os.makedirs(f'd{n}/e/f'); os.chmod(f'd{n}/e', 0o500); os.chmod(f'd{n}', 0o100)",
    )
    yield "its own directory locked", "open('answer', 'w').write('1')\nos.mkdir('d')\nos.chmod('.', 0o100)"
    for depth in (1200, 2500):
        yield (
            f"directories {depth} deep",
            f"open('answer', 'w').write('1')\nfor _ in range({depth}): os.mkdir('d' * 100); os.chdir('d' * 100)",
        )
    yield "a long answer", "open('answer', 'wb').write(b'x' * (12 * 2**20))"
    yield "a link to itself", "os.symlink('answer', 'answer')"
    yield "an answer without rights", "open('answer', 'w').close(); os.chmod('answer', 0)"
