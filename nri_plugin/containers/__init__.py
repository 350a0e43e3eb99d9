"""The life of containers on this node, whichever runtime reports it and receives the adjustments.

lifecycle.py has one method per event; records.py has the containers' state, creation.py handles the
creation and start.py the start. Nothing here depends on NRI.
"""
