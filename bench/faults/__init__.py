"""The fault matrix: what becomes of containers with a grant when agent or runtime fail.

Not a measurement of time: each cell counts the containers in which a process can open a GPU with
no limit in force. Pods, containerd and agent are real; agent.py alone makes the agent misbehave.

    cases.py    which faults there are, and what they were made to show
    agent.py    the agent as a program, with a fault in it
    outcome.py  what became of a container, from what a probe inside it and the runtime said
    rig.py      one containerd with that agent; performs a cell
    large.py    what is large in the rows of sizes
    report.py   cells as a table
"""
