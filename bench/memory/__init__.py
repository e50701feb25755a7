"""Time and memory of a trainer rank: loading a model, and accumulating the gradient of several bins."""
