"""What the agent does when a container of this node is created, started or removed.

lifecycle.py handles these events, records.py keeps the containers' state, and parts.py has the
agent's components that both of them use. No module of this package depends on NRI.
"""
