"""Which samples are made, kept and trained: events, the ledger they are folded into, and round policies. Pure."""
