"""The dialogue with the container runtime: NRI requests in, adjustments and refusals out.

Uses nri_plugin.containers; the agent and the fault bench use it.
"""
