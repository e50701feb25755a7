"""Rounds are trained in the order in which they were opened, each step on the published weights of the one before. Pure."""

from __future__ import annotations

from longboat_runtime.rounds.policy import Action, Publish, Train
from longboat_runtime.rounds.view import View


def next_work(view: View) -> Action | None:
    """What the trainer can do next: publish the last step, else make one from the oldest round once that is closed."""
    if view.serving != view.step:
        return Publish(view.step) if view.publishing is None else None
    oldest = next(iter(view.rounds.values()), None)
    return Train(oldest.number) if oldest and oldest.trainable else None


def opened_steps(view: View) -> int:
    """The step that the youngest round feeds, or fed."""
    return view.step + len(view.rounds)
