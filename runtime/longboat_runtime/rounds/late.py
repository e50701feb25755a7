"""What comes of a response that finished while it was being stopped. Pure."""

from __future__ import annotations

from longboat_runtime.rounds import events
from longboat_runtime.rounds.view import View


def as_given_back(view: View, body: events.Body) -> events.Body:
    """Such a response counts for nothing, and its length is known: it is `Stopped` and `finished`. Anything else is itself."""
    if isinstance(body, events.Generated) and view.awaits(body.sample):
        return events.Stopped(body.sample, body.tokens, body.engine, finished=True)
    return body
