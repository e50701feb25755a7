"""One transaction for everything a job needs to go on: written aside, made durable, renamed into place last."""
