"""What a grade costs beyond the reward function itself."""
