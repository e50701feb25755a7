"""What the files of `spec.rollouts` cost a step."""
