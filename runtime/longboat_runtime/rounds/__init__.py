"""Decides which samples are generated, kept and trained: events, the ledger that folds them, and round policies. Pure."""
