"""The agent's gRPC service and client for the kubelet, which give whole GPUs to pods.

This package is imported only with --whole-gpus, because gRPC takes 13 MiB.
"""
