"""Has episodes of environments played."""
