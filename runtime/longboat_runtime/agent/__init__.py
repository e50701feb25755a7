"""A container's first process: starts, restarts and reaps its one child, follows the Ray head, answers probes, drains on SIGTERM.

The child is `ray start` (head, rollout, reward, trainer) or `longboat driver`. Everything that descends from it belongs to it and
ends with it. When to start, end and give up is decided by a pure function (`decide.next_state`).
"""
