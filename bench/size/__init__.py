"""Peak memory and speed of a trainer's step on one GPU, for models shaped like those that people train on many, by `longboat plan`."""
