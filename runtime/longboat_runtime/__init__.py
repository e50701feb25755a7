"""The data plane: what runs in the pods of a job."""
