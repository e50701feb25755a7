"""CPU and wall time of one optimizer step on a recorded batch, against TRL's."""
