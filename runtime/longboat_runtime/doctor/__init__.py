"""`longboat doctor`: whether a pod, or this machine, has what its role needs, and the cure of what it lacks.

Each check is a pure rule over facts that are gathered beside it. Nothing is started or changed, and no GPU's memory is used, so it may
run in a pod that works.
"""
