"""Grades responses: reward functions, the graders that run them, and the pools that the driver asks.

`function`, `result`, `adapters`, `test_cases`, `verdict` and `graders`, which graders import, load neither torch nor ray nor numpy:
graders' processes are forks of one that holds what they import, and pay for that.
"""
