"""Finished samples on their way out of an engine's thread."""

from __future__ import annotations

import threading

from longboat_runtime.samples import GeneratedSample, SampleId


class Outbox:
    """Filled by the engine's own thread, emptied by another one.

    While it is held (a publication is being verified) samples are kept back; they leave on `release` or are dropped.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._ready: list[GeneratedSample] = []
        self._kept_back: list[GeneratedSample] | None = None
        self._failure: Exception | None = None

    def put(self, sample: GeneratedSample) -> None:
        with self._changed:
            if self._kept_back is not None:
                self._kept_back.append(sample)
                return
            self._ready.append(sample)
            self._changed.notify_all()

    def hold(self) -> None:
        """From now on nothing that is put leaves."""
        with self._changed:
            self._kept_back = []

    def release(self) -> None:
        """Lets go what was kept back."""
        with self._changed:
            self._ready += self._kept_back or []
            self._kept_back = None
            self._changed.notify_all()

    def drop(self) -> list[SampleId]:
        """Forgets what was kept back and says what it was."""
        with self._changed:
            dropped = [sample.id for sample in self._kept_back or []]
            self._kept_back = None
            return dropped

    def fail(self, failure: Exception) -> None:
        """Nothing more will come: `take` raises `failure` once what is ready has been taken."""
        with self._changed:
            self._failure = failure
            self._changed.notify_all()

    def take(self, timeout: float) -> list[GeneratedSample]:
        """Waits up to `timeout` seconds for at least one sample; returns all there are, in the order they finished."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._failure is not None, timeout)
            taken, self._ready = self._ready, []
            if not taken and self._failure is not None:
                raise self._failure
            return taken
