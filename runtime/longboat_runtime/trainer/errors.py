"""Defines the trainer's errors that the driver must tell apart."""

from __future__ import annotations


class TrainerLost(Exception):
    """The trainer's ranks and the state in them are gone. The group can be loaded again, and restored from a checkpoint."""


class NotStreamed(Exception):
    """The ranks have no gradients that a step or chunk could be added to. The weights are unchanged: the whole batch can be trained."""
