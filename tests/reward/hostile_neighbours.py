"""Hostile programs that turn to other processes, their files, and the network: a name and the program's text, by class."""

from __future__ import annotations

from collections.abc import Iterator

from tests.reward.hostile_limits import WATCHED

# The argument of a process that programs may try to harm.
VICTIM = "7777.25"
# What no program may find: where it occurs it is followed by 16 hexadecimal digits.
SECRET = "SECRET-"

_FIND = f"""
def others(word):
    for entry in os.listdir('/proc'):
        if entry.isdigit():
            try:
                if word in open(f'/proc/{{entry}}/cmdline').read(): yield int(entry)
            except OSError: pass
victims = list(others('{VICTIM}'))
assert victims
"""


def signals() -> Iterator[tuple[str, str]]:
    """Signals to, and power over, others' processes."""
    for number in ("SIGKILL", "SIGTERM", "SIGSTOP", "SIGINT", "SIGUSR1"):
        yield (
            f"{number} to another's process",
            f"import signal\n{_FIND}\nfor pid in victims: attempt(os.kill, pid, signal.{number})",
        )
    yield (
        "SIGKILL to another's thread",
        f"import ctypes\n{_FIND}\nif ctypes.CDLL(None).syscall(234, victims[0], victims[0], 9) == 0: harm()",
    )
    yield "SIGKILL queued", f"import ctypes\n{_FIND}\nif ctypes.CDLL(None).sigqueue(victims[0], 9, 0) == 0: harm()"
    yield (
        "SIGKILL by a descriptor",
        f"import signal\n{_FIND}\nattempt(lambda: signal.pidfd_send_signal(os.pidfd_open(victims[0]), 9))",
    )
    yield (
        "SIGKILL by a program",
        f"import subprocess\n{_FIND}\nattempt(subprocess.run, ['sh', '-c', f'kill -9 {{victims[0]}}'], check=True)",
    )
    yield (
        "a signal by a pipe's owner",
        f"import fcntl, signal\n{_FIND}\nr, w = os.pipe()\ndef own():\n    fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC)\n"
        f"    fcntl.fcntl(r, 10, signal.SIGKILL); fcntl.fcntl(r, fcntl.F_SETOWN, victims[0]); os.write(w, b'x')\n"
        "    while list(others('" + VICTIM + "')): time.sleep(0.01)\nattempt(own)",
    )
    yield "whether its parent is there", "attempt(os.kill, os.getppid(), 0)"
    yield "whether its parent's group is there", "attempt(os.killpg, os.getpgid(os.getppid()), 0)"
    yield "whether anybody is there", "attempt(os.kill, -1, 0)"
    yield "another's priority", f"{_FIND}\nattempt(os.setpriority, os.PRIO_PROCESS, victims[0], 19)"
    yield (
        "another's limits",
        f"import resource\n{_FIND}\nattempt(resource.prlimit, victims[0], resource.RLIMIT_CPU, (1, 1))",
    )
    yield "another's CPUs", f"{_FIND}\nattempt(os.sched_setaffinity, victims[0], {{0}})"


_SEARCH = f"""
import re
def search(data):
    if re.search(('{SECRET[:3]}' + '{SECRET[3:]}').encode() + rb'[0-9a-f]{{16}}', data): harm(); os._exit(0)
def look(path):
    try:
        with open(path, 'rb') as file: search(file.read(2**20))
    except OSError: pass
"""
_PARENTS = """
parents, pid = [], os.getpid()
while pid > 1:
    try: pid = int(open(f'/proc/{pid}/stat').read().rpartition(')')[2].split()[1])
    except OSError: break
    parents.append(pid)
"""


def reading() -> Iterator[tuple[str, str]]:
    """What others know, and what the case runner does."""
    yield (
        "files beside its directory",
        f"{_SEARCH}\nfor top in ('..', '../..', '../../..', '../../../..'):\n    for entry in os.listdir(top): look(f'{{top}}/{{entry}}')",
    )
    yield (
        "files below its parents",
        f"{_SEARCH}\nfor depth in range(1, 6):\n    try: found = list(os.scandir('../' * depth))\n    except OSError: continue\n    for entry in found:\n        look(entry.path)\n        try: [look(f'{{entry.path}}/{{name}}') for name in os.listdir(entry.path)]\n        except OSError: pass",
    )
    yield "files with known names", f"{_SEARCH}\nfor depth in range(1, 6): look('../' * depth + 'secret')"
    yield (
        "a symbolic link",
        f"{_SEARCH}\nfor depth in range(1, 6):\n    os.symlink(os.path.abspath('../' * depth + 'secret'), f'l{{depth}}'); look(f'l{{depth}}')",
    )
    yield (
        "a hard link",
        f"{_SEARCH}\nfor depth in range(1, 6):\n    try: os.link('../' * depth + 'secret', f'l{{depth}}')\n    except OSError: continue\n    look(f'l{{depth}}')",
    )
    yield (
        "a renamed file",
        f"{_SEARCH}\nfor depth in range(1, 6):\n    try: os.rename('../' * depth + 'secret.copy', f'l{{depth}}')\n    except OSError: continue\n    look(f'l{{depth}}')",
    )
    yield (
        "a program's help",
        f"{_SEARCH}\nimport subprocess\nfor depth in range(1, 6): search(subprocess.run(['cat', '../' * depth + 'secret'], capture_output=True).stdout)",
    )
    yield (
        "a shell's help",
        f"{_SEARCH}\nimport subprocess\nsearch(subprocess.run('cat ../secret ../../secret ../../../secret ../../../../secret', shell=True, capture_output=True).stdout)",
    )
    for what in ("environ", "cmdline", "auxv"):
        end = "\nif not parents: raise SystemExit" if what != "auxv" else ""
        search = (
            "look(f'/proc/{p}/" + what + "')"
            if what == "environ"
            else "look(f'/proc/{p}/environ'); look(f'/proc/{p}/" + what + "')"
        )
        yield f"its parents' {what}", f"{_SEARCH}\n{_PARENTS}{end}\nfor p in parents: {search}"
    yield (
        "its parents' directories",
        f"{_SEARCH}\n{_PARENTS}\nfor p in parents: look(f'/proc/{{p}}/cwd/secret'); look(f'/proc/{{p}}/cwd/../secret')",
    )
    yield (
        "its parents' open files",
        (
            f"{_SEARCH}\n{_PARENTS}\nfor p in parents:\n    try: found = os.listdir(f'/proc/{{p}}/fd')\n    except OSError: continue\n"
            "    for n in found:\n        try:\n            if os.path.isfile(f'/proc/{p}/fd/{n}'): look(f'/proc/{p}/fd/{n}')\n        except OSError: pass"
        ),
    )
    yield (
        "its parents' memory",
        (
            f"{_SEARCH}\n{_PARENTS}\nfor p in parents:\n    try:\n        with open(f'/proc/{{p}}/maps') as maps, open(f'/proc/{{p}}/mem', 'rb', 0) as memory:\n"
            "            for line in maps:\n                span, rights, *rest = line.split()\n                if 'rw' not in rights: continue\n"
            "                begin, end = (int(x, 16) for x in span.split('-'))\n                try:\n                    memory.seek(begin); search(memory.read(min(end - begin, 2**24)))\n"
            "                except (OSError, ValueError, OverflowError): pass\n    except OSError: pass"
        ),
    )
    yield (
        "what its parent held when it forked",
        (
            f"{_SEARCH}\nimport gc\nfor value in gc.get_objects():\n    try: search(repr(value).encode() if not isinstance(value, dict) or len(value) < 1000 else b'')\n"
            f"    except Exception: pass\n{_PARENTS}\nfor p in parents: look(f'/proc/{{p}}/environ')"
        ),
    )


def writing() -> Iterator[tuple[str, str]]:
    """Files outside of its directory."""
    places = {
        "/tmp": "/tmp/harm-{pid}",
        "/var/tmp": "/var/tmp/harm-{pid}",
        "shared memory": "/dev/shm/harm-{pid}",
        "its parent": "../harm-{pid}",
        "its grandparent": "../../harm-{pid}",
    }
    ways = {
        "a file in": "attempt(lambda: open({path}, 'w').close())",
        "a directory in": "attempt(os.mkdir, {path})",
        "a link in": "attempt(os.symlink, '/etc', {path})",
        "a FIFO in": "attempt(os.mkfifo, {path})",
    }
    for place, path in places.items():
        for way, text in ways.items():
            if way in ("a file in", "a directory in") or place in ("/tmp", "its parent"):
                yield f"{way} {place}", text.format(path=f"{path!r}.format(pid=os.getpid())")
    target = "'../harm-{pid}'.format(pid=os.getpid())"
    yield "a file moved out", f"open('f', 'w').close()\nattempt(os.rename, 'f', {target})"
    yield "a file linked out", f"open('f', 'w').close()\nattempt(os.link, 'f', {target})"
    yield (
        "through a symbolic link",
        f"os.symlink(os.path.abspath({target}), 'l')\nattempt(lambda: open('l', 'w').close())",
    )
    yield (
        "through its descriptor",
        "fd = os.open('..', os.O_PATH)\nattempt(lambda: os.close(os.open('harm-%d' % os.getpid(), os.O_CREAT | os.O_WRONLY, dir_fd=fd)))",
    )
    yield (
        "by a program",
        f"import subprocess\nattempt(subprocess.run, ['touch', {target}], check=True, capture_output=True)",
    )
    yield (
        "another's file, truncated",
        "for depth in range(1, 6):\n    if os.path.exists('../' * depth + 'secret.copy'): attempt(os.truncate, '../' * depth + 'secret.copy', 0); break",
    )
    yield (
        "another's file, removed",
        "for depth in range(1, 6):\n    if os.path.exists('../' * depth + 'secret.copy'): attempt(os.remove, '../' * depth + 'secret.copy'); break",
    )
    yield (
        "the rights of the directories above",
        (
            "for depth in range(1, 5):\n    above = '../' * depth\n    before = os.stat(above).st_mode & 0o777\n    try: os.chmod(above, 0o500)\n"
            "    except OSError: continue\n    if os.stat(above).st_mode & 0o777 != before: harm(); os.chmod(above, before)"
        ),
    )


def network() -> Iterator[tuple[str, str]]:
    """Connections."""
    kinds = {
        "TCP": "socket.socket(socket.AF_INET)",
        "TCP over IPv6": "socket.socket(socket.AF_INET6)",
        "UDP": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
        "Unix": "socket.socket(socket.AF_UNIX)",
        "Unix datagrams": "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)",
        "netlink": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)",
        "a pair of datagram sockets": "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)",
    }
    for name, text in kinds.items():
        yield name, f"import socket\nattempt(lambda: {text})"
        yield (
            f"{name}, in a program",
            (
                "import subprocess\n"
                f"attempt(subprocess.run, [sys.executable, '-c', 'import socket; {text}'], check=True, capture_output=True)"
            ),
        )
    yield "a server", "import socketserver\nattempt(lambda: socketserver.TCPServer(('127.0.0.1', 0), None))"
    yield "a server of HTTP", "import http.server\nattempt(lambda: http.server.HTTPServer(('127.0.0.1', 0), None))"
    yield (
        "asyncio",
        "import asyncio\nasync def serve(): (await asyncio.start_server(lambda *_: None, '127.0.0.1', 0)).sockets[0]\nattempt(lambda: asyncio.run(serve()))",
    )
    yield "without the C library's check", "import ctypes\nif ctypes.CDLL(None).syscall(41, 2, 1, 0) >= 0: harm()"


def tracing() -> Iterator[tuple[str, str]]:
    """Others' memory, files and state."""
    library = "import ctypes\nlibrary = ctypes.CDLL(None, use_errno=True)\n"
    yield "ptrace, attached", f"{library}{_FIND}\nif library.ptrace(16, victims[0], 0, 0) == 0: harm()"
    yield "ptrace, seized", f"{library}{_FIND}\nif library.ptrace(0x4206, victims[0], 0, 0) == 0: harm()"
    yield "ptrace of its parent", f"{library}\nif library.ptrace(0x4206, os.getppid(), 0, 0) == 0: harm()"
    yield (
        "process_vm_readv",
        (
            f"{library}{_FIND}\nclass Span(ctypes.Structure): _fields_ = [('at', ctypes.c_void_p), ('size', ctypes.c_size_t)]\n"
            "begin = int(open(f'/proc/{victims[0]}/maps').read().split('-')[0], 16)\nroom = ctypes.create_string_buffer(8)\n"
            "mine, theirs = Span(ctypes.addressof(room), 8), Span(begin, 8)\n"
            "if library.process_vm_readv(victims[0], ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0) == 8: harm()"
        ),
    )
    yield "another's memory", f"{_FIND}\nattempt(lambda: open(f'/proc/{{victims[0]}}/mem', 'r+b', 0).close())"
    yield "its parent's memory", "attempt(lambda: open(f'/proc/{os.getppid()}/mem', 'r+b', 0).close())"
    yield "another's map of memory", f"{_FIND}\nattempt(lambda: open(f'/proc/{{victims[0]}}/maps').read())"
    yield "its parent's environment", "attempt(lambda: open(f'/proc/{os.getppid()}/environ').read())"
    yield "its parent's files", "attempt(os.readlink, f'/proc/{os.getppid()}/fd/0')"
    yield "its parent's directory", "attempt(os.readlink, f'/proc/{os.getppid()}/cwd')"
    yield "its parent's program", "attempt(os.readlink, f'/proc/{os.getppid()}/exe')"
    yield "its parent's stack of calls", "attempt(lambda: open(f'/proc/{os.getppid()}/syscall').read())"
    yield (
        "another's descriptor",
        f"{library}{_FIND}\nfd = os.pidfd_open(victims[0])\nif library.syscall(438, fd, 0, 0) >= 0: harm()",
    )
    yield (
        "its own memory made hidden",
        f"{library}\nif library.prctl(4, 0, 0, 0, 0) == 0:\n    kept = b'x' * (220 * 2**20); time.sleep({WATCHED}); harm()",
    )
    yield (
        "io_uring",
        f"{library}\nroom = ctypes.create_string_buffer(256)\nif library.syscall(425, 4, room) >= 0: harm()",
    )
    yield (
        "shared memory that stays",
        f"{library}\nsegment = library.shmget(0, 4096, 0o1600)\nif segment >= 0: library.shmctl(segment, 0, 0); harm()",
    )
