"""Grades responses: reward functions, the graders that run them, and the pools that the driver asks.

Modules that graders import (`function`, `result`, `adapters`, `graders`) import neither torch nor ray nor numpy:
graders' processes are forks of one that holds what they import, and pay for that.
"""
