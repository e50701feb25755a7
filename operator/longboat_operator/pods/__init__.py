"""Builds what a job is made of: its pods and the objects around them, as plain dicts. Pure."""
