"""Grading as a service: learned timeouts against the hard limit, and CPUs that move between reward pods."""
