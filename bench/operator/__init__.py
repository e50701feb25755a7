"""What the operator costs: plans, demands of many jobs, and how soon a demand is granted."""
