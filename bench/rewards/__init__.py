"""Grading as a service: learned timeouts against the hard limit."""
