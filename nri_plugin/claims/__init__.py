"""The kubelet's plugin for Dynamic Resource Allocation: ResourceClaims instead of annotations.

plugin.py has the plugin's sockets, preparing.py answers the kubelet's calls, and store.py keeps
what was prepared. slices.py makes the node's ResourceSlice, and kube/claims_driver.py writes it.
policy/front_ends.py and policy/device_claims.py have the rules.
"""
