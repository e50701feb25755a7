"""Has responses graded: the scheduler that the driver asks, pools of reward workers, and their way to the graders beside them."""
