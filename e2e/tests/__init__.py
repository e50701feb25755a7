"""Longboat used as people use it; most of these tests share one cluster."""
