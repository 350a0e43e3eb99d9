"""The distributor: brings a library to the node, so that it is changed without the agent.

Uses nri_plugin.host; only the command line uses it.
"""
