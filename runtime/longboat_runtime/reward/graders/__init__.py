"""Where reward functions run.

    reward worker --Unix socket--> server --socket pair--> zygote (one a function) --fork--> child (one a grade)

The server speaks the protocol and never runs a user's code. A zygote has imported one reward function and forks for every
grade, so that nothing a response does to the process outlives its grade. A child confines itself (`sandbox`), grades, answers and
is killed with its whole process group, in time or not.
"""
