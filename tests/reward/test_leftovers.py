"""What a process that stays finds changed after a grade; with versions of dicts, and without, as in a Python that has none."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

OWN = """
value = kept = 1000
cache = {}
def function(memory=[]): pass
class Thing:
    count = 0
    def __init__(self): self.x = 0
thing = Thing()
last = None
"""
# Each in a process of its own.
SCRIPT = """
import json, math, os, signal, sys, threading
import own
from longboat_graders import leftovers
from longboat_graders.watch import Origins
changes, versions = json.load(sys.stdin)
assert leftovers._versions_work() == (sys.version_info < (3, 14))
os.umask(0o077)
if not versions: leftovers._versions_work = lambda: False
for name, change in changes.items():
    pid = os.fork()
    if pid == 0:
        os.mkdir(f"empty-{name}"); os.chdir(f"empty-{name}")
        names = {"os": os, "own": own, "signal": signal, "sys": sys, "threading": threading}
        names["__builtins__"] = __builtins__
        sys.modules["__main__"].__file__ = os.__file__
        names["baseline"] = leftovers.Baseline(Origins([]))
        names["check"] = names["baseline"].change
        exec(change, names)
        found = names["baseline"].change()
        os.write(1, (json.dumps([name, found]) + "\\n").encode())
        os._exit(0)
    os.waitpid(pid, 0)
"""
CHANGES = {
    "a name": ("own.value = 2", "a changed own.value"),
    "a new name": ("own.more = 1", "a changed own.more"),
    "a name less": ("del own.value", "a changed own.value"),
    "another name": ("del own.last; own.later = None", "a changed own.later"),
    "a name of a library": ("import math; math.sqrt = 1", "a changed math.sqrt"),
    "an attribute of a class": ("own.Thing.count = 1", "a changed own.count"),
    "a method": ("own.Thing.__init__ = 1", "a changed own.__init__"),
    "an attribute of an object": ("own.thing.x = 1", "a changed object.x"),
    "an attribute of a function": ("own.function.calls = 1", "a changed object.calls"),
    "a dictionary": ("own.cache[1] = 1", "something in a global variable"),
    "a default": ("own.function.__defaults__[0].append(1)", "something in a global variable"),
    "a module": ("sys.modules['math'] = own", "another module in sys.modules"),
    "a module less": ("del sys.modules['math']", "another module in sys.modules"),
    "after a look": ("own.value = own.value; assert check() is None; own.value = 2", "a changed own.value"),
    "after many": ("for _ in range(3): own.value = own.kept; assert check() is None\nown.cache = {}", "a changed own.cache"),
    "a file": ("open('left', 'w').close()", "a file"),
    "an open file": ("kept = open('/dev/null')", "an open file"),
    "a thread": ("threading.Thread(target=threading.Event().wait, daemon=True).start()", "a thread"),
    "a signal handler": ("signal.signal(signal.SIGALRM, print)", "a signal handler"),
    "the environment": ("os.environ['HARM'] = '1'", "a changed environment"),
    "nothing": ("", None),
    "the same again": ("own.value = own.kept", None),
    "there and back": ("own.value = 2; own.Thing.count = 2; own.value = own.kept; own.Thing.count = 0", None),
    "one more module": ("import fractions; assert check() is None; import calendar", None),
}  # fmt: skip


@pytest.mark.parametrize("versions", [True, False])
def test_what_is_found_changed(tmp_path: Path, versions: bool) -> None:
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "script.py").write_text(SCRIPT)
    asked = json.dumps([{name: change for name, (change, _) in CHANGES.items()}, versions])
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, cwd=tmp_path, check=True)
    found = dict(map(json.loads, done.stdout.splitlines()))
    assert found == {name: expected for name, (_, expected) in CHANGES.items()}, done.stderr
