"""Hostile programs that take too much of something, or don't let go of it: a name and the program's text, by class."""

from __future__ import annotations

from collections.abc import Iterator

# The argument of a process that programs leave.
LEFT = "1000.25"
# How many seconds programs wait before they report success, so that whoever watches them can look meanwhile.
WATCHED = "1000.75"


def processes() -> Iterator[tuple[str, str]]:
    """More processes and threads than are allowed."""
    ways = {
        "forks": "for _ in range({n}):\n    if os.fork() == 0:\n        time.sleep(1e6)\nharm()",
        "a chain": "left = {n}\nwhile left:\n    left -= 1\n    if os.fork():\n        os.wait(); os._exit(0)\nharm()",
        "doubling": "start = os.getpid()\nfor _ in range({bits}): os.fork()\nif os.getpid() == start: time.sleep({watched}); harm(); os._exit(0)\ntime.sleep(1e6)",
        "threads": "import threading\nfor _ in range({n}): threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()\nharm(); os._exit(0)",
        "programs": "import subprocess\nfor _ in range({n}): subprocess.Popen(['sleep', '1e6'])\nharm(); os._exit(0)",
        "a shell": "import subprocess\nsubprocess.run(['sh', '-c', 'for i in $(seq {n}); do sleep 1e6 & done; echo HARM'])",
        "spawned": "for _ in range({n}): os.posix_spawnp('sleep', ['sleep', '1e6'], os.environ)\nharm()",
        "threads of forks": "import threading\nfor _ in range(6):\n    if os.fork() == 0:\n        for _ in range({n} // 6): threading.Thread(target=time.sleep, "
        "args=(1e6,)).start()\n        time.sleep(1e6)\nfound = 0\nwhile found <= {n} // 2:\n    time.sleep(0.01)\n"
        "    found = sum(len(os.listdir(f'/proc/{{c}}/task')) for c in open(f'/proc/self/task/{{os.getpid()}}/children').read().split())\nharm()",
    }
    for n in (48, 72, 120):
        for way, text in ways.items():
            yield f"{n}, {way}", text.format(n=n, bits=(n - 1).bit_length(), watched=WATCHED)


def memory() -> Iterator[tuple[str, str]]:
    """More memory in one process, or in the kernel."""
    ways = {
        "bytes": "kept = b'x' * ({m} * 2**20)",
        "a bytearray": "kept = bytearray({m} * 2**20)\nfor at in range(0, len(kept), 4096): kept[at] = 1",
        "many small objects": "kept = [[] for _ in range({m} * 2**20 // 64)]",
        "a long text": "kept = 'é' * ({m} * 2**20)",
        "a dictionary": "kept = {{n: bytes(1000) for n in range({m} * 1000)}}",
        "mapped": "import mmap\nkept = mmap.mmap(-1, {m} * 2**20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\nfor at in range(0, len(kept), 4096): kept[at] = 1",
        "mapped and shared": "import mmap\nkept = mmap.mmap(-1, {m} * 2**20)\nfor at in range(0, len(kept), 4096): kept[at] = 1",
        "in the kernel": "fd = os.memfd_create('x')\nfor _ in range({m}): os.write(fd, bytes(2**20))",
        "page tables": "import mmap\nkept = mmap.mmap(-1, {m} * 2**29, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)\n"
        "for at in range(0, len(kept), 2**21): kept[at]",
        "in a program": "import subprocess\nsubprocess.run([sys.executable, '-c', 'import time; k = bytes([1]) * ({m} * 2**20); time.sleep({watched})'], check=True)",
        "in a thread": "import threading\nkept = []\nt = threading.Thread(target=lambda: kept.append(b'x' * ({m} * 2**20))); t.start(); t.join()\nassert kept",
    }
    for m in (220, 300):
        for way, text in ways.items():
            yield f"{m} MiB, {way}", text.format(m=m, watched=WATCHED) + f"\ntime.sleep({WATCHED})\nharm()"


def memory_of_trees() -> Iterator[tuple[str, str]]:
    """More memory in several processes, none of which has too much."""
    for count, each in ((4, 60), (8, 40), (12, 25), (3, 90)):
        yield (
            f"{count} forks with {each} MiB",
            (
                f"ready, done = os.pipe()\nfor _ in range({count}):\n    if os.fork() == 0:\n        kept = b'x' * ({each} * 2**20); os.write(done, b'1'); "
                f"time.sleep(1e6)\nos.close(done)\nassert all(os.read(ready, 1) for _ in range({count}))\ntime.sleep({WATCHED})\nharm()"
            ),
        )
        yield (
            f"a chain of {count} with {each} MiB",
            f"for n in range({count}):\n    kept = b'x' * ({each} * 2**20)\n    if os.fork():\n        os.wait(); os._exit(0)\ntime.sleep({WATCHED})\nharm()",
        )
        yield (
            f"{count} programs with {each} MiB",
            (
                f"import subprocess\nhold = 'import time; k = bytes([1]) * ({each} * 2**20); print(1, flush=True); time.sleep(1e6)'\n"
                f"all = [subprocess.Popen([sys.executable, '-c', hold], stdout=subprocess.PIPE) for _ in range({count})]\n"
                f"if b''.join(p.stdout.readline() for p in all).count(b'1') == len(all): time.sleep({WATCHED}); harm()"
            ),
        )


def files() -> Iterator[tuple[str, str]]:
    """More in files."""
    ways = {
        "one file": "with open('f', 'wb') as file:\n    for _ in range({m}): file.write(os.urandom(2**20))",
        "many files": "for n in range({m}):\n    with open(f'f{{n}}', 'wb') as file: file.write(os.urandom(2**20))",
        "files in directories": "for n in range({m}):\n    os.makedirs(f'd{{n}}/e')\n    with open(f'd{{n}}/e/f', 'wb') as file: file.write(os.urandom(2**20))",
        "removed files": "kept = []\nfor n in range({m} // 4):\n    kept.append(open('f', 'wb')); os.remove('f'); kept[-1].write(os.urandom(2**22)); kept[-1].flush()",
        "allocated": "fd = os.open('f', os.O_CREAT | os.O_RDWR)\nos.posix_fallocate(fd, 0, {m} * 2**20)",
        "by a program": "import subprocess\nsubprocess.run(['dd', 'if=/dev/urandom', 'of=f', 'bs=1M', 'count={m}'], check=True, capture_output=True)",
        "by forks": "for n in range({m} // 8):\n    if os.fork() == 0:\n        with open(f'f{{n}}', 'wb') as file: file.write(os.urandom(2**23))\n        os._exit(0)\n"
        "for _ in range({m} // 8): assert os.wait()[1] == 0",
    }
    for m in (32, 64):
        for way, text in ways.items():
            yield f"{m} MiB, {way}", text.format(m=m, watched=WATCHED) + f"\ntime.sleep({WATCHED})\nharm()"
    yield "many empty files", "for n in range(12_000): os.close(os.open(f'f{n}', os.O_CREAT | os.O_RDWR))\nharm()"


def output() -> Iterator[tuple[str, str]]:
    """More output."""
    for m in (3, 12):
        yield f"{m} MiB in lines", f"for _ in range({m} * 2**14): print('x' * 63)"
        yield f"{m} MiB at once", f"os.write(1, b'x' * ({m} * 2**20))"
        yield f"{m} MiB of errors", f"for _ in range({m}): os.write(2, b'x' * 2**20)\nharm()"
        yield f"{m} MiB by a program", f"import subprocess\nsubprocess.run(['head', '-c', '{m}M', '/dev/zero'])"
        yield (
            f"{m} MiB by forks",
            f"for _ in range({m}):\n    if os.fork() == 0: os.write(1, b'x' * 2**20); os._exit(0)\nfor _ in range({m}): os.wait()",
        )


def busy() -> Iterator[tuple[str, str]]:
    """CPU time without end."""
    deaf = "import signal\nfor n in range(1, 32):\n    if n not in (9, 19): signal.signal(n, signal.SIG_IGN)\n"
    loops = {
        "a loop": "while True: pass",
        "a sum": "sum(range(10**12))",
        "a pattern": "import re\nre.match('(a+)+$', 'a' * 60 + 'b')",
        "a power": "3 ** (10**9)",
        "a sort": "while True: sorted(range(10**6), key=lambda n: -n)",
        "a program": "import subprocess\nsubprocess.run([sys.executable, '-c', 'while True: pass'])",
        "a fork": "os.fork()\nwhile True: pass",
        "threads": "import threading\ndef run():\n    while True: pass\nfor _ in range(4): threading.Thread(target=run).start()",
        "system calls": "while True: os.getppid()",
        "errors": "while True:\n    try: 1 / 0\n    except BaseException: continue",
    }
    for name, text in loops.items():
        yield name, text
    for name in ("a loop", "a fork", "threads", "system calls"):
        yield f"{name}, deaf to signals", deaf + loops[name]


def sleeping() -> Iterator[tuple[str, str]]:
    """Time without end."""
    waits = {
        "sleep": "time.sleep(1e6)",
        "a pipe": "os.read(os.pipe()[0], 1)",
        "a lock": "import threading\nlock = threading.Lock(); lock.acquire(); lock.acquire()",
        "an event": "import threading\nthreading.Event().wait()",
        "a signal": "import signal\nsignal.pause()",
        "a queue": "import queue\nqueue.Queue().get()",
        "a program": "import subprocess\nsubprocess.run(['sleep', '1000'])",
        "a fork": "if os.fork() == 0: time.sleep(1e6)\nos.wait()",
        "a thread": "import threading\nthreading.Thread(target=time.sleep, args=(1e6,)).start()",
        "a FIFO": "os.mkfifo('f'); open('f').read()",
        "at exit": "import atexit\natexit.register(time.sleep, 1e6)",
        "when it is destroyed": "class Slow:\n    def __del__(self): time.sleep(1e6)\nkept = Slow()\ndel kept",
        "stopped": "import signal\nos.kill(os.getpid(), signal.SIGSTOP)",
        "asyncio": "import asyncio\nasyncio.run(asyncio.sleep(1e6))",
    }
    yield from waits.items()


def leaving() -> Iterator[tuple[str, str]]:
    """Processes that are to go on."""
    sleep = f"os.execvp('sleep', ['sleep', '{LEFT}'])"
    ways = {
        "a fork": f"if os.fork() == 0: {sleep}",
        "two forks": f"if os.fork() == 0:\n    if os.fork() == 0: {sleep}\n    os._exit(0)\nos.wait()",
        "a session": f"if os.fork() == 0:\n    try: os.setsid()\n    except OSError: pass\n    {sleep}",
        "two forks and a session": f"if os.fork() == 0:\n    try: os.setsid()\n    except OSError: pass\n    if os.fork() == 0: {sleep}\n    os._exit(0)\nos.wait()",
        "a process group": f"if os.fork() == 0:\n    try: os.setpgid(0, 0)\n    except OSError: pass\n    {sleep}",
        "a shell": f"os.system('sleep {LEFT} &')",
        "nohup": f"os.system('nohup sleep {LEFT} > /dev/null 2>&1 &')",
        "setsid": f"os.system('setsid sleep {LEFT} &')\nos.system('setsid -f sleep {LEFT}')\nif os.fork() == 0: {sleep}",
        "a program": f"import subprocess\nsubprocess.Popen(['sleep', '{LEFT}'])",
        "a program with a session": f"import subprocess\ntry: subprocess.Popen(['sleep', '{LEFT}'], start_new_session=True)\n"
        f"except OSError: subprocess.Popen(['sleep', '{LEFT}'])",
        "spawned": f"os.posix_spawnp('sleep', ['sleep', '{LEFT}'], os.environ)",
        "deaf to signals": f"import signal\nif os.fork() == 0:\n    for n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\n    {sleep}",
        "a subreaper's": f"import ctypes\nctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\nif os.fork() == 0:\n    if os.fork() == 0: {sleep}\n    os._exit(0)",
        "without parent's death": f"import ctypes\nif os.fork() == 0:\n    ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)\n    {sleep}",
        "while it crashes": f"if os.fork() == 0: {sleep}\nimport ctypes\nctypes.string_at(0)",
        "a chain": f"for _ in range(6):\n    if os.fork(): os._exit(0)\n{sleep}",
    }
    yield from ways.items()
