"""What a child says is read as an answer or refused: graded code may have written it."""

import asyncio
import os
import socket
from typing import Any

import pytest

from longboat_graders.frames import FrameBuffer, FrameError, encode
from longboat_graders.supervisor import Grading, Supervised
from longboat_graders.times import Slowdown


@pytest.mark.parametrize("score", [10**400, "much", None, [1]], ids=["too large", "a word", "nothing", "a list"])
async def test_an_answer_without_a_score_is_refused(score: Any) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        child = Supervised(1, True, ours, asyncio.get_running_loop(), Slowdown(), True, pid=os.getpid())
        child.grade(Grading(b"{}", 1000.0, 0, None, asyncio.get_running_loop().create_future()))
        [(request, _)] = FrameBuffer().feed(theirs.recv(100_000))
        theirs.send(encode({"token": request["token"], "outcome": {"kind": "scored", "score": score, "message": ""}}))
        with pytest.raises(FrameError, match="not an answer"):
            child.read()
