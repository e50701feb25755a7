"""How long a checkpoint holds up training, and how long it is written during the steps that follow."""
