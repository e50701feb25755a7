"""The images of the test cluster and of Longboat, built without a registry and kept as archives in the cache."""
