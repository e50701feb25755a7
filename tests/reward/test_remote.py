"""What messages of a program can have its case runner do: call what the program was given, and nothing else."""

import socket

import pytest

from longboat_graders.frames import FrameBuffer
from longboat_graders.remote import CaseRunnerPeer, ProgramGone


class OwnError(Exception):
    pass


def fail() -> None:
    raise OwnError


def test_a_program_can_call_what_it_was_given_and_nothing_else() -> None:
    """Neither the class of an error that it gets, nor what is found by attributes."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        peer = CaseRunnerPeer(ours, 10_000)
        given = peer.export(fail)
        calls = [{"call": number, "method": "__call__", "arguments": [], "named": {}} for number in (given, given + 1)]
        for call, error in zip(calls, ["Exception", "IndexError"], strict=True):
            peer.answer(call)
            [(answer, _)] = FrameBuffer().feed(theirs.recv(10_000))
            assert answer["raised"]["kind"] == error
        with pytest.raises(ProgramGone):
            peer.answer({**calls[0], "get": given, "name": "__class__"})
