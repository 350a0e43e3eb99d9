"""Files, mounts, processes and CDI specs of this host. Everything here may block.

Uses nri_plugin.gpu and nri_plugin.policy; containers, doctor and distributor use it.
"""
