"""What streaming gains: jobs with and without it in turn, and what the simulator says of them."""
