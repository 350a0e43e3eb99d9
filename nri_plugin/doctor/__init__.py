"""`python -m nri_plugin doctor`: looks at this node and says, line by line, what to change.

It reads, and changes nothing: facts.py has what was found, as plain values; host.py and
containerd.py find it; checks.py and runtime_checks.py judge it, purely; command.py is the
command. A look that fails is a fact, too.
"""
