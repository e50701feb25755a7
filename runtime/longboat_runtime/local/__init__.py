"""Jobs without Kubernetes: the same driver on a local Ray."""
