"""The life of containers on this node, whichever runtime reports it and applies the plans.

lifecycle.py has what happens to a container, records.py the containers' state, parts.py what both
work with. Nothing here depends on NRI.
"""
