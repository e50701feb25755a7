"""The demo: from nothing to a trained model on a Kubernetes, and what it looked like."""
