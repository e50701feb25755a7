"""Simulates what short rounds save if samples are episodes that mostly wait for their environment (`make bench NAME=turns`)."""
