"""What the agent reads from the API server and publishes there.

Uses kube, nri_plugin.gpu and nri_plugin.policy; only the agent uses it.
"""
