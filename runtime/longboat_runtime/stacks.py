"""Python stacks of this process' threads, for the watchdog's reports."""

from __future__ import annotations

import sys
import threading
import traceback


def thread_stacks() -> str:
    """Returns the stack of every thread but the calling one, a paragraph each, innermost call last.

    Call it from a thread that is not stuck.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    paragraphs = [
        f"Thread {names.get(ident, ident)}:\n" + "".join(traceback.format_stack(frame))
        for ident, frame in sorted(sys._current_frames().items())
        if ident != threading.get_ident()
    ]
    return "\n".join([*paragraphs, f"Thread {threading.current_thread().name} (asked)"])
