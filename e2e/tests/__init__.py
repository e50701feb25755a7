"""Longboat used as people use it; one cluster for all of them, gone after the last."""
