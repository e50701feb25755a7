"""From a snapshot to a plan: every rule about a job's life, each in a module of its own. Pure."""

from longboat_operator.plan.job import plan

__all__ = ["plan"]
