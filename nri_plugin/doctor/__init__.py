"""`python -m nri_plugin doctor`: checks this node and prints what to change, one line per check.

Read-only. facts.py defines the facts as plain values. The modules host*, containerd and platform
collect them; a fact that cannot be collected is recorded with the reason. The modules *checks are
pure and evaluate the facts. command.py parses options and prints the results.
"""
