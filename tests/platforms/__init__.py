"""The node agent and the doctor on the GPU nodes of each platform, from the chart's own pod.

platform.py says what a node consists of, and each platform's file which of that it has; tree.py
makes it in a lab, kubelet.py starts the chart's pod there, node.py observes. table.py has all
platforms; `python -m tests.platforms` writes docs/platforms.md from what they show.
"""
