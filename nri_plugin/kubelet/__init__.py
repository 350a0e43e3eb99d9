"""The agent's side towards the kubelet, by gRPC; imported only with --whole-gpus, as gRPC takes
13 MiB.

gRPC must install no handlers for fork: the agent's children only call exec, and the handlers log a
line for each child.
"""

import os

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
