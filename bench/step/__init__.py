"""Seconds of a synchronous step, by stage, against TRL's GRPOTrainer."""
