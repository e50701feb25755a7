"""Simulates what a job would take: discrete events over the production policies, ledger and router, and measured step costs."""
