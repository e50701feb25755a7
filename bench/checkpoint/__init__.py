"""How long a checkpoint holds up training, and how long it is written beside the steps that follow."""
