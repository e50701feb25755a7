"""One transaction for everything a job needs to resume: files are written and made durable, the manifest is renamed into place last."""
