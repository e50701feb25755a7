"""The control plane: watches RLJobs and makes them true."""
