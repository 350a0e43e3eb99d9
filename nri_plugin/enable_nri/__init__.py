"""`python -m nri_plugin enable-nri`: turns NRI on in containerd, or restores it if that fails.

edits.py decides what to write and is pure; host.py sees and runs the host's programs; change.py
applies files with a journal, so that the next run repairs an interrupted one; command.py is the
command. Opt-in: the only part of the agent that changes a program of the host.
"""
