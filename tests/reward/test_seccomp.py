"""The filter's program, run by a small interpreter of classic BPF: every call ends in the action that the rules give it."""

import errno
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_graders.seccomp import (
    DENIED,
    Instruction,
    number,
    own_program,
    program_filter,
    shared_program,
)

GROUP, PROTECTED = 4321, (1, 100, 200)
ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, KILL = 0x7FFF0000, 0x80000000
machines = st.sampled_from(sorted(ARCHITECTURE))
# Calls that change a file's rights, and where these stand among the arguments. 64-bit Arm has no chmod.
RIGHTS = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2}


def action(program: list[Instruction], architecture: int, call: int, *arguments: int) -> int:
    padded = [argument % 2**64 for argument in (*arguments, 0, 0, 0, 0, 0, 0)][:6]
    data = struct.pack("<IIQ6Q", call, architecture, 0, *padded)
    accumulator, at = 0, 0
    while True:
        code, if_true, if_false, constant = program[at]
        at += 1
        match code:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", data, constant)
            case 0x54:
                accumulator &= constant
            case 0x15:
                at += if_true if accumulator == constant else if_false
            case 0x35:
                at += if_true if accumulator >= constant else if_false
            case 0x06:
                return constant


def actions(machine: str, call: int, *arguments: int, alone: bool = False) -> set[int]:
    """Of the zygote's filter and the child's own."""
    programs = shared_program(machine), own_program(PROTECTED, machine, alone=alone, group=GROUP)
    return {action(program, ARCHITECTURE[machine], call, *arguments) for program in programs}


def outcome(machine: str, name: str, *arguments: int, alone: bool = False) -> int:
    """As the kernel decides it: killing comes before an error, and that before allowing."""
    found = actions(machine, number(name, machine), *arguments, alone=alone)
    return KILL if KILL in found else max((result & 0xFFFF for result in found - {ALLOW}), default=0)


@given(machines, st.sampled_from((*DENIED, "setpgid")), st.lists(st.integers(0, 2**64 - 1), max_size=6))
def test_denied_calls_are_denied_whatever_their_arguments(machine: str, name: str, arguments: list[int]) -> None:
    assert outcome(machine, name, *arguments) == errno.EPERM


@given(machines, st.integers(0, 2**31 - 1))
def test_other_calls_pass(machine: str, call: int) -> None:
    conditional = ("clone", "clone3", "socketpair", "prlimit64", "sched_setaffinity", "kill", "tkill", "tgkill")
    conditional += ("rt_sigqueueinfo", "rt_tgsigqueueinfo", "setpgid", *RIGHTS)
    if call in {number(name, machine) for name in (*DENIED, *conditional)} or (
        machine == "x86_64" and call >= 0x40000000
    ):
        return
    assert actions(machine, call) == {ALLOW}


@pytest.mark.parametrize("machine", sorted(ARCHITECTURE))
def test_foreign_architectures_are_killed(machine: str) -> None:
    program = shared_program(machine)
    assert action(program, 0x40000003, 1) == KILL
    if machine == "x86_64":
        assert action(program, ARCHITECTURE[machine], 0x40000000 + number("socket", machine)) == KILL


@given(machines, st.sampled_from(["kill", "tgkill", "rt_sigqueueinfo"]), st.integers(-(2**31), 2**31 - 1))
def test_signals_reach_no_guardian_and_no_other_group(machine: str, call: str, pid: int) -> None:
    allowed = pid == -GROUP or (pid >= 0 and pid not in PROTECTED)
    assert outcome(machine, call, pid, 9) == (0 if allowed else errno.EPERM)
    for guardian in (*PROTECTED, -1, -200):
        assert outcome(machine, call, guardian, 9) == errno.EPERM


@given(machines, st.integers(-(2**31), 2**31 - 1))
def test_a_zygote_can_lead_its_children(machine: str, pid: int) -> None:
    """What its own filter denied it could do no more."""
    for name in ("setpgid", "kill"):
        assert action(shared_program(machine), ARCHITECTURE[machine], number(name, machine), pid) == ALLOW


@pytest.mark.parametrize("machine", sorted(ARCHITECTURE))
def test_conditional_calls(machine: str) -> None:
    unix, stream, datagram, cloexec, internet = 1, 1, 2, 0o2000000, 2
    assert outcome(machine, "socketpair", unix, stream | cloexec) == 0
    assert outcome(machine, "socketpair", unix, datagram) == errno.EPERM
    assert outcome(machine, "socketpair", internet, stream) == errno.EPERM
    assert outcome(machine, "clone", 0x3D0F00) == 0
    assert outcome(machine, "clone", 0x10000000 | 17) == errno.EPERM
    assert outcome(machine, "clone3") == errno.ENOSYS
    assert outcome(machine, "prlimit64", 0) == 0
    assert outcome(machine, "prlimit64", 5) == errno.EPERM


@given(machines, st.sampled_from([*RIGHTS]), st.integers(0, 0o7777))
def test_an_owner_keeps_all_rights(machine: str, name: str, rights: int) -> None:
    """What would take one away seems to be done: its error is 0."""
    if (name, machine) == ("chmod", "aarch64"):
        return
    arguments = [7] * RIGHTS[name]
    allowed = rights & 0o700 == 0o700
    assert actions(machine, number(name, machine), *arguments, rights) == ({ALLOW} if allowed else {ALLOW, 0x00050000})


@pytest.mark.parametrize("machine", sorted(ARCHITECTURE))
def test_a_process_that_stays_is_killed_when_it_starts_another(machine: str) -> None:
    """An error could be caught, and become a score of 0."""
    thread, vfork, fork = 0x3D0F00, 0x4000 | 0x100 | 17, 0x1200011
    assert outcome(machine, "clone", thread, alone=True) == 0
    for flags in (vfork, fork, 17, 0):
        assert outcome(machine, "clone", flags) == 0
        assert outcome(machine, "clone", flags, alone=True) == KILL
    assert outcome(machine, "clone3", alone=True) == errno.ENOSYS
    starts = ["execve", "execveat", *(["fork", "vfork"] if machine == "x86_64" else [])]
    assert [outcome(machine, name, alone=True) for name in starts] == [KILL] * len(starts)
    assert [outcome(machine, name) for name in starts] == [0] * len(starts)


@given(machines, st.sampled_from(["kill", "tgkill", "rt_sigqueueinfo"]), st.integers(-(2**31), 2**31 - 1))
def test_a_process_that_stays_signals_itself_only(machine: str, call: str, pid: int) -> None:
    for target in (pid, GROUP, -GROUP, 0, *PROTECTED):
        assert outcome(machine, call, target, 9, alone=True) == (0 if target == GROUP else errno.EPERM)


@given(machines, st.sampled_from((*DENIED, "setpgid")))
def test_what_is_denied_is_denied_to_a_process_that_stays(machine: str, name: str) -> None:
    assert outcome(machine, name, alone=True) == errno.EPERM


PROGRAM = 2**22 + 1  # stands for its group in a filter that isn't installed yet


def program_action(machine: str, name: str, *arguments: int, scoped: bool = True, asks: bool = True) -> int:
    filter_ = program_filter(PROTECTED, machine, scoped=scoped, asks=asks)
    return action(filter_, ARCHITECTURE[machine], number(name, machine), *arguments)


DENY, ASK = 0x00050000 | errno.EPERM, 0x7FC00000


@given(machines, st.booleans())
def test_a_program_holds_no_memory_that_nobody_counts_and_has_nobody_signalled(machine: str, scoped: bool) -> None:
    denied = [("memfd_create",), ("memfd_secret",), ("setpgid", 0, 0), ("fcntl", 3, 8, 1), ("fcntl", 3, 15, 1)]
    denied += [("ioctl", 3, 0x8901, 1), ("ioctl", 3, 0x8902, 1), ("setsockopt", 3, 1, 7), ("setsockopt", 3, 1, 32)]
    for name, *arguments in denied:
        assert program_action(machine, name, *arguments, scoped=scoped) == DENY, name
    for name, *arguments in [("fcntl", 3, 3), ("ioctl", 3, 0x5401), ("setsockopt", 3, 1, 2), ("setpriority",)]:
        assert program_action(machine, name, *arguments, scoped=scoped) == ALLOW, name


@given(machines, st.booleans(), st.booleans())
def test_the_kernel_asks_before_a_program_starts_a_process_if_it_can(machine: str, scoped: bool, asks: bool) -> None:
    for name in ("clone", "fork", "vfork") if machine == "x86_64" else ("clone",):
        assert program_action(machine, name, scoped=scoped, asks=asks) == (ASK if asks else ALLOW)


@pytest.mark.parametrize("machine", sorted(ARCHITECTURE))
@pytest.mark.parametrize("alone", [False, True])
def test_the_kernel_asks_before_a_grade_starts_what_it_may_start(machine: str, alone: bool) -> None:
    filter_ = own_program(PROTECTED, machine, alone=alone, asks=True, group=GROUP)
    thread, fork = 0x3D0F00, 0x1200011
    calls = [("clone", thread), ("clone", fork), *([("fork",), ("vfork",)] if machine == "x86_64" else [])]
    answers = [action(filter_, ARCHITECTURE[machine], number(name, machine), *rest) for name, *rest in calls]
    assert answers == [ASK, *[KILL if alone else ASK] * (len(calls) - 1)]


@given(machines, st.integers(2, 2**22), st.sampled_from(["kill", "tkill", "tgkill", "rt_sigqueueinfo"]))
def test_without_landlock_a_program_signals_its_first_process_and_its_group_only(
    machine: str, pid: int, name: str
) -> None:
    assert program_action(machine, name, pid, scoped=False) == DENY
    assert program_action(machine, name, 2**32 - pid, scoped=False) == DENY
    assert program_action(machine, name, 2**32 - 1, scoped=False) == DENY
    for own in (PROGRAM, 2**32 - PROGRAM, 0):
        assert program_action(machine, name, own, scoped=False) == ALLOW
