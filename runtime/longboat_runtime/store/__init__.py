"""The sample store: holds generated samples in a pod that outlives engines."""
