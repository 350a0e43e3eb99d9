"""`python -m nri_plugin doctor`: checks this node and prints what to change, one line per check.

Read-only. facts.py defines the collected facts as plain values; the modules host* and
containerd collect them, the modules *checks evaluate them and are pure; command.py is the command.
A fact that cannot be collected is recorded with its cause.
"""
