"""Runs reward functions, and plays episodes of environments.

    reward worker --Unix socket--> server --socket pair--> children (each grades once, or one response after the other)
                                   server --socket pair--> zygote (one a function) --fork--> children

The server speaks the protocol, keeps the time, and never runs a user's code. A zygote has imported one reward function and forks children;
no sample passes through it. A child confines itself (`sandbox`), grades and answers. It stays for further grades, `zygote.MAX_GRADES` at
most, if the reward's isolation allows it and the grade has left nothing behind (`leftovers`). With Auto it also ends before code that came
with a sample runs in it (`watch`). When a child ends, its whole process group is killed, in time or not.
The kernel asks the zygote before a child starts a process or thread, so that none multiplies faster than it is counted.

A program in a response is graded by a case runner (`case_runner`), a child like any other:

    case runner --fork--> launcher --fork--> program (one for each test case, file of tests or compilation)

A launcher is forked before its case runner has read the sample, so only the case runner has the expected results.

Environments are played by a server of the same make, which sandboxes nothing:

    episodes container --Unix socket--> server --socket pair--> keepers (each has one episode)
                                        server --socket pair--> zygote (one an environment) --fork--> keepers --fork--> players

A player runs the environment's code. Its keeper watches it and all that it starts, and removes what is left of them (`keeper`).
"""
