"""`python -m nri_plugin doctor`: checks this node and prints what to change, one line per check.

Read-only. facts.py defines the collected facts as plain values; host.py and containerd.py collect
them; checks.py and runtime_checks.py evaluate them and are pure; command.py is the command. A fact
that cannot be collected is recorded with its cause.
"""
