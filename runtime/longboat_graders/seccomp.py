"""The system calls a grade may not make: seccomp filters in classic BPF, built here and installed through ctypes.

A grade is under two, since installing a long one costs as much as a third of a fork: what a zygote can do without is denied to itself, and
so to its children; a child denies itself the rest, and so does a response's program.

One kind of call only seems to be made: what wouldn't leave a file's owner all rights (`_RIGHTS`).

What they don't deny is still subject to the pod's own filter (RuntimeDefault), which allows only known calls. They deny
the network, ways around the file rules, ways to keep processes or state beyond the grade, and signals to the processes that watch it.
A process that stays for further grades is killed when it starts another or a program: an error could be caught, and pass for a zero.
Constants: linux/filter.h, linux/seccomp.h, linux/audit.h, linux/sched.h.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
from functools import cache

from longboat_graders import prctl

TYPE_CHECKING = False  # `typing` itself would be in the memory of every grader
if TYPE_CHECKING:
    from collections.abc import Sequence

_LOAD, _AND, _JUMP_EQUAL, _JUMP_GREATER_EQUAL, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_ALLOW, _ERROR, _KILL, _ASK = 0x7FFF0000, 0x00050000, 0x80000000, 0x7FC00000
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32 = 0x40000000
_NUMBER_OFFSET, _ARCHITECTURE_OFFSET = 0, 4
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_SET_MODE_FILTER, _NEW_LISTENER = 1, 1 << 3
# struct seccomp_notif and seccomp_notif_resp, the ioctls that take them, and the answer that lets the kernel go on.
_ASKED_BYTES, _ANSWER = 80, struct.Struct("=QqiI")
_RECEIVE, _SEND, _CONTINUE = 0xC0502100, 0xC0182101, 1

# Denied whatever their arguments, the zygote included.
DENIED = (
    # The network. io_uring would make any call without passing this filter.
    *("socket", "connect", "bind", "listen", "accept", "accept4"),
    *("io_uring_setup", "io_uring_enter", "io_uring_register"),
    # Leaving the process group, by which a grade is killed; see `own_program` for the other way.
    "setsid",
    # Other processes.
    *("ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "pidfd_send_signal", "process_madvise"),
    *("process_mrelease", "migrate_pages", "move_pages", "setpriority", "ioprio_set", "sched_setparam"),
    *("sched_setscheduler", "sched_setattr"),
    # State that outlives processes.
    *("shmget", "semget", "msgget", "mq_open", "add_key", "request_key", "keyctl"),
    # Namespaces, mounts and the machine.
    *("unshare", "setns", "chroot", "pivot_root", "mount", "umount2", "open_tree", "move_mount", "fsopen", "fsconfig"),
    *("fsmount", "fspick", "mount_setattr", "name_to_handle_at", "open_by_handle_at", "bpf", "perf_event_open"),
    *("userfaultfd", "personality", "kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module"),
    *("reboot", "swapon", "swapoff", "acct", "quotactl", "syslog", "settimeofday", "clock_settime", "clock_adjtime"),
    *("sethostname", "setdomainname"),
    # Access control lists, which change rights as those below do.
    *("setxattr", "lsetxattr", "fsetxattr", "setxattrat"),
)
# Changing a file's rights, and where these stand among the arguments. Landlock lets everybody do that to whatever their user owns,
# also to the directories of all grades, which are above a grade's own. A filter sees no path, and an error would end programs that do
# so to a file of theirs (`shutil.copy`), so it seems to be done unless the owner keeps all rights.
_RIGHTS = {
    "x86_64": {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2},
    "aarch64": {"fchmod": 1, "fchmodat": 2, "fchmodat2": 2},
}
_OWNERS_RIGHTS = 0o700
# Denied to programs besides: memory that no process has mapped, and so nobody counts.
_UNCOUNTED = ("memfd_create", "memfd_secret")
# Larger buffers of a socket: SO_SNDBUF, SO_SNDBUFFORCE. As many as it has at first are counted, see `process_tree.memory`.
_BUFFERS = (7, 32)
# Having the kernel signal another process: F_SETOWN, F_SETOWN_EX; FIOSETOWN, SIOCSPGRP.
_OWNERS = {"fcntl": (8, 15), "ioctl": (0x8901, 0x8902)}
# Calls whose first argument is a process that gets a signal.
_SIGNALS = ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo")
_CLONE_NAMESPACES, _CLONE_THREAD = 0x7E020000, 0x00010000
# Starting processes and programs. 64-bit Arm has clone alone.
_STARTS = {"x86_64": ("fork", "vfork", "execve", "execveat"), "aarch64": ("execve", "execveat")}
_FORKS = {"x86_64": ("clone", "fork", "vfork"), "aarch64": ("clone",)}
_AF_UNIX, _SOCK_STREAM, _SOCK_TYPE_MASK = 1, 1, 0xF

# struct sock_filter, and where in it the constant stands.
_INSTRUCTION_BYTES, _CONSTANT_AT = 8, 4
# More than any process id; stands in the program where the group comes in.
_ANY_GROUP = 2**22 + 1
_LIBRARY = ctypes.CDLL(None, use_errno=True)

Instruction = tuple[int, int, int, int]


def shared_program(machine: str) -> list[Instruction]:
    """Builds the zygote's filter as BPF instructions (code, jump if true, jump if false, constant), inherited by all that it starts.

    A denied call fails with EPERM, clone3 with ENOSYS; a call through another ABI kills the process. Calls that wouldn't leave a file's
    owner all rights report success and do nothing (`_RIGHTS`).
    """
    deny = _ERROR | errno.EPERM
    program: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE_OFFSET),
        (_JUMP_EQUAL, 1, 0, _ARCHITECTURES[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_OFFSET),
    ]
    if machine == "x86_64":
        program += [(_JUMP_GREATER_EQUAL, 0, 1, _X32), (_RETURN, 0, 0, _KILL)]
    for name in DENIED:
        program += _answer(name, machine, deny)
    # clone3 has its flags in memory, where a filter can't read them; without it the C library uses clone.
    program += _answer("clone3", machine, _ERROR | errno.ENOSYS)
    namespaces = [_load(0), (_AND, 0, 0, _CLONE_NAMESPACES), (_JUMP_EQUAL, 1, 0, 0), (_RETURN, 0, 0, deny)]
    program += _when("clone", machine, namespaces)
    # A pair of connected streams reaches nobody else; asyncio needs one.
    program += _when(
        "socketpair",
        machine,
        [
            _load(0),
            (_JUMP_EQUAL, 1, 0, _AF_UNIX),
            (_RETURN, 0, 0, deny),
            _load(1),
            (_AND, 0, 0, _SOCK_TYPE_MASK),
            (_JUMP_EQUAL, 1, 0, _SOCK_STREAM),
            (_RETURN, 0, 0, deny),
        ],
    )
    keeps_rights = [(_AND, 0, 0, _OWNERS_RIGHTS), (_JUMP_EQUAL, 1, 0, _OWNERS_RIGHTS), (_RETURN, 0, 0, _ERROR)]
    for name, argument in _RIGHTS[machine].items():
        program += _when(name, machine, [_load(argument), *keeps_rights])
    for name in ("prlimit64", "sched_setaffinity"):
        program += _when(name, machine, [_load(0), (_JUMP_EQUAL, 1, 0, 0), (_RETURN, 0, 0, deny)])
    program.append((_RETURN, 0, 0, _ALLOW))
    return program


def own_program(
    protected: Sequence[int], machine: str, *, alone: bool = False, asks: bool = False, group: int = _ANY_GROUP
) -> list[Instruction]:
    """Builds a child's filter beside the zygote's, for what the zygote itself has to do: signals, process groups and starting processes.

    `group` is the number of the grade's process group, and so of its leader. It may be signalled as a whole, but no other group, nor,
    by their ids, the `protected` processes; only Landlock guards the ids of their other threads. `alone` is for a process that stays: it
    may signal itself only, and starting another process or program kills it. With `asks` the kernel asks before it starts a process or
    thread (see `Filter.install_asking`).
    """
    deny = _ERROR | errno.EPERM
    program: list[Instruction] = [(_LOAD, 0, 0, _NUMBER_OFFSET), *_answer("setpgid", machine, deny)]
    for name in _FORKS[machine] if asks and not alone else ():
        program += _answer(name, machine, _ASK)
    if alone:
        threads_only = [_load(0), (_AND, 0, 0, _CLONE_THREAD), (_JUMP_EQUAL, 0, 1, 0), (_RETURN, 0, 0, _KILL)]
        if asks:
            threads_only.append((_RETURN, 0, 0, _ASK))
        program += _when("clone", machine, threads_only)
        for name in _STARTS[machine]:
            program += _answer(name, machine, _KILL)
    # All of them go on behind the answer to all other calls.
    program += [
        (_JUMP_EQUAL, jump, 0, number(name, machine))
        for jump, name in zip(range(len(_SIGNALS), 0, -1), _SIGNALS, strict=True)
    ]
    program += [(_RETURN, 0, 0, _ALLOW), _load(0)]
    if alone:
        program += [(_JUMP_EQUAL, 1, 0, group), (_RETURN, 0, 0, deny)]
    else:
        for pid in protected:
            program += [(_JUMP_EQUAL, 0, 1, pid), (_RETURN, 0, 0, deny)]
        # Negative: a whole group (its own is allowed) or, at -1, every process.
        program += [(_JUMP_EQUAL, 2, 0, 2**32 - group), (_JUMP_GREATER_EQUAL, 0, 1, 2**31), (_RETURN, 0, 0, deny)]
    program.append((_RETURN, 0, 0, _ALLOW))
    return program


def program_filter(protected: Sequence[int], machine: str, *, scoped: bool, asks: bool) -> list[Instruction]:
    """Builds the filter of a response's program, beside the zygote's: like a grade's own one, but stricter.

    It also denies having the kernel signal others, memory that nobody counts, and setting the send buffers of sockets. With `asks` the
    kernel asks before it starts a process or thread (see `Filter.install_asking`). `scoped`: Landlock keeps signals within the program's
    own processes. Without that it may signal only its first process and its group as a whole, since a filter can't tell one process of the
    group from another sample's.
    """
    deny = _ERROR | errno.EPERM
    program: list[Instruction] = [(_LOAD, 0, 0, _NUMBER_OFFSET)]
    for name in _UNCOUNTED:
        program += _answer(name, machine, deny)
    for name in _FORKS[machine] if asks else ():
        program += _answer(name, machine, _ASK)
    for name, argument, commands in (
        *((name, 1, action) for name, action in _OWNERS.items()),
        ("setsockopt", 2, _BUFFERS),
    ):
        body = [_load(argument)]
        for command in commands:
            body += [(_JUMP_EQUAL, 0, 1, command), (_RETURN, 0, 0, deny)]
        program += _when(name, machine, body)
    if scoped:
        return program + own_program(protected, machine)
    program += _answer("setpgid", machine, deny)
    for name in _SIGNALS:
        body = [
            _load(0),
            (_JUMP_EQUAL, 3, 0, _ANY_GROUP),
            (_JUMP_EQUAL, 2, 0, 2**32 - _ANY_GROUP),
            (_JUMP_EQUAL, 1, 0, 0),
        ]
        program += _when(name, machine, [*body, (_RETURN, 0, 0, deny)])
    program.append((_RETURN, 0, 0, _ALLOW))
    return program


def starts_program(machine: str) -> list[Instruction]:
    """Builds a filter by which the kernel asks before a process or thread is started, and that denies nothing."""
    program: list[Instruction] = [(_LOAD, 0, 0, _NUMBER_OFFSET)]
    for name in _FORKS[machine]:
        program += _answer(name, machine, _ASK)
    # Its flags may be read by nobody who is asked; without it the C library uses clone.
    program += _answer("clone3", machine, _ERROR | errno.ENOSYS)
    return [*program, (_RETURN, 0, 0, _ALLOW)]


def _answer(name: str, machine: str, action: int) -> list[Instruction]:
    """Returns the instructions that answer the call `name` with `action`."""
    return [(_JUMP_EQUAL, 0, 1, number(name, machine)), (_RETURN, 0, 0, action)]


def _load(argument: int) -> Instruction:
    """Loads the lower half of an argument (both machines are little endian)."""
    return (_LOAD, 0, 0, 16 + 8 * argument)


def _when(name: str, machine: str, body: list[Instruction]) -> list[Instruction]:
    """Returns the instructions that run `body` for the call `name`, which is allowed unless `body` decides otherwise."""
    body = [*body, (_RETURN, 0, 0, _ALLOW)]
    return [(_JUMP_EQUAL, 0, len(body), number(name, machine)), *body]


class Filter:
    """A filter, built once for all grades of a zygote: they differ in their group only.

    Building it in every grade's process would copy hundreds of pages there that it shares with the zygote.
    """

    def __init__(self, program: Sequence[Instruction]) -> None:
        packed = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
        self._code = ctypes.create_string_buffer(packed, len(packed))
        self._header = struct.pack("@HP", len(program), ctypes.addressof(self._code))
        self._holes = [
            (ctypes.c_uint32.from_buffer(self._code, index * _INSTRUCTION_BYTES + _CONSTANT_AT), constant == _ANY_GROUP)
            for index, (*_, constant) in enumerate(program)
            if constant in (_ANY_GROUP, 2**32 - _ANY_GROUP)
        ]

    def install_asking(self, group: int) -> int:
        """Installs the filter as `install` does. Returns the file descriptor by which the kernel asks whoever holds it (`let_start`).

        No process under the filter may keep it.
        """
        self._fill(group)
        fd: int = _LIBRARY.syscall(number("seccomp", os.uname().machine), _SET_MODE_FILTER, _NEW_LISTENER, self._header)
        if fd < 0:
            raise OSError(ctypes.get_errno(), f"seccomp: {os.strerror(ctypes.get_errno())}")
        return fd

    def install(self, group: int = 0) -> None:
        """Puts this process and all it will start under the filter, for good. Needs no_new_privs; raises OSError if refused."""
        self._fill(group)
        if _LIBRARY.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, self._header, 0, 0):
            raise OSError(ctypes.get_errno(), f"seccomp: {os.strerror(ctypes.get_errno())}")

    def _fill(self, group: int) -> None:
        for hole, positive in self._holes:
            hole.value = group if positive else -group


def let_start(listener: int) -> None:
    """Lets a call go on that the kernel asks for. Nothing happens if its process is gone."""
    notification = bytearray(_ASKED_BYTES)
    try:
        fcntl.ioctl(listener, _RECEIVE, notification)
        fcntl.ioctl(
            listener, _SEND, bytearray(_ANSWER.pack(int.from_bytes(notification[:8], "little"), 0, 0, _CONTINUE))
        )
    except FileNotFoundError:
        return


@cache
def can_ask() -> bool:
    """Whether the kernel asks a process about another's calls and lets them go on (5.5), and no container runtime asks already.

    Tried in a fork.
    """
    machine = os.uname().machine
    pid = os.fork()
    if pid == 0:
        try:
            prctl.gain_no_privileges()
            listener = Filter(
                [(_LOAD, 0, 0, _NUMBER_OFFSET), *_answer("acct", machine, _ASK), (_RETURN, 0, 0, _ALLOW)]
            ).install_asking(0)
            fcntl.ioctl(listener, _SEND, bytearray(_ANSWER.pack(0, 0, 0, _CONTINUE)))
        except OSError as error:
            # A kernel that can let calls go on finds that nobody has asked (ENOENT). Others don't know the answer (EINVAL).
            os._exit(error.errno != errno.ENOENT)
        os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


# Numbers of the calls named above, from the kernel's tables (x86-64: arch/x86/entry/syscalls/syscall_64.tbl; 64-bit Arm:
# include/uapi/asm-generic/unistd.h). Name: (x86_64, aarch64); calls from 424 on have one number everywhere.
_NUMBERS: dict[str, tuple[int, int]] = {
    "accept": (43, 202),
    "accept4": (288, 242),
    "acct": (163, 89),
    "add_key": (248, 217),
    "bind": (49, 200),
    "bpf": (321, 280),
    "chmod": (90, -1),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "connect": (42, 203),
    "delete_module": (176, 106),
    "execve": (59, 221),
    "execveat": (322, 281),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fcntl": (72, 25),
    "finit_module": (313, 273),
    "fork": (57, -1),
    "fsetxattr": (190, 7),
    "init_module": (175, 105),
    "ioctl": (16, 29),
    "ioprio_set": (251, 30),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "kill": (62, 129),
    "listen": (50, 201),
    "lsetxattr": (189, 6),
    "memfd_create": (319, 279),
    "migrate_pages": (256, 238),
    "mount": (165, 40),
    "move_pages": (279, 239),
    "mq_open": (240, 180),
    "msgget": (68, 186),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pivot_root": (155, 41),
    "prlimit64": (302, 261),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "seccomp": (317, 277),
    "semget": (64, 190),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "setpgid": (109, 154),
    "setpriority": (141, 140),
    "setsid": (112, 157),
    "setsockopt": (54, 208),
    "settimeofday": (164, 170),
    "setxattr": (188, 5),
    "shmget": (29, 194),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "tgkill": (234, 131),
    "tkill": (200, 130),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vfork": (58, -1),
}
_COMMON: dict[str, int] = {
    "pidfd_send_signal": 424,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "clone3": 435,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "memfd_secret": 447,
    "process_mrelease": 448,
    "fchmodat2": 452,
    "setxattrat": 463,
}

# Machine (`platform.machine()`): column above.
_COLUMNS = {"x86_64": 0, "aarch64": 1}


def number(name: str, machine: str) -> int:
    """Returns the number of the call on `machine` (as `platform.machine()` names it), -1 for one that it doesn't have."""
    return _COMMON[name] if name in _COMMON else _NUMBERS[name][_COLUMNS[machine]]
