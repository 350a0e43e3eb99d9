"""The node agent and the doctor on the GPU nodes of each platform, in the chart's own pod.

platform.py defines how a node is described, and each platform's file describes its node. tree.py
makes the node in a lab, kubelet.py starts the chart's pod there, and node.py observes it. table.py
lists all platforms. `python -m tests.platforms` writes the results to docs/platforms.md.
"""
