"""Random faults on real jobs: `make chaos SEED=1 MINUTES=10 POLICY=all`."""
