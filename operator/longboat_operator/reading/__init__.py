"""Reads a snapshot: spec, status, pods and how their containers ended. Pure."""
