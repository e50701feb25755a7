"""One transaction for everything a job needs to resume: written aside, made durable, renamed into place last."""
