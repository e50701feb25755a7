"""Longboat against a real Kubernetes on one machine: the test cluster and the tests that use it as people do."""
