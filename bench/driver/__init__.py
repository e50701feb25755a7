"""What the driver itself costs, by samples in flight, with engines and graders that answer at once."""
