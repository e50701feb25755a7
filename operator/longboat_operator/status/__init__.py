"""Makes what the operator reports about a job: conditions, phase, counts, events. Pure."""
