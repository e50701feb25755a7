"""What responses are worth: reward functions, the graders that run them, and the pool that the driver asks.

Modules that graders import (`function`, `result`, `adapters`, `graders`) import neither torch nor ray nor numpy:
every grade forks a small warm process.
"""
