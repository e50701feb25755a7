"""Round policies against each other on real vLLM: rollout seconds, waste, bias, accuracy; and what the simulator predicts."""
