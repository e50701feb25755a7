"""The Longboat API: pydantic models of RLJob, RLRuntime and ClusterRLRuntime, the single source of CRDs, docs and schemas."""
