"""The fault matrix: the outcome for containers with a grant when the agent or the runtime fails.

Measures no time: each cell counts the containers in which a process can open a GPU with no limit in
force. Pods, containerd and agent are real; agent.py injects the agent's faults.

    cases.py    the faults
    agent.py    the agent as a program, with a fault injected
    outcome.py  a container's outcome, from a probe inside it and the runtime's answer
    rig.py      one containerd with that agent; performs a cell
    large.py    the large messages in the rows of sizes
    report.py   cells as a table
    bystanders.py  a program of its own: what a fault does to containers without a share
"""
