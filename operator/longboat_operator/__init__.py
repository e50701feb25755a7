"""The control plane: watches RLJobs and makes the cluster match them."""
