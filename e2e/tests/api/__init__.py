"""Tests what the API server takes and refuses, on a cluster of its own without an operator."""
