"""The fault matrix shows what happens to containers with a grant if the agent or the runtime fails.

For each fault and runtime, it counts the containers in which a process can open a GPU with no limit
in force. Pods, containerd and agent are real. agent.py injects the agent's faults. bystanders.py is
a separate program, which measures what a fault does to containers without a share.
"""
