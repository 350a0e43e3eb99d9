"""The agent's gRPC service and client for the kubelet, which give whole GPUs to pods.

This package is imported only with --whole-gpus, because gRPC takes 13 MiB. gRPC's fork handlers
are disabled: they would log a line for each child, and the agent's children only call exec.
"""

import os

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
