"""The fault matrix: the outcome for containers with a grant when the agent or the runtime fails.

Measures no time: each cell counts the containers in which a process can open a GPU with no limit in
force. Pods, containerd and agent are real; agent.py injects the agent's faults. bystanders.py is a
program of its own: what a fault does to containers without a share.
"""
