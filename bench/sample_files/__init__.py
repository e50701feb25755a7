"""What the files of `spec.samples` cost a step."""
