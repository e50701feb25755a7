"""What the operator says of a job: conditions, phase, counts, events. Pure."""
