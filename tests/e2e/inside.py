"""What programs in pods of a whole cluster print and see."""

from __future__ import annotations

import json

from tests.e2e.whole import Whole
from tests.support import until


def logs(whole: Whole, pod: str, container: str, namespace: str = "default") -> str:
    """Return the container's output once it ends with a complete line."""

    def read() -> str:
        return whole.try_kubectl("logs", f"-n={namespace}", pod, f"--container={container}").stdout

    until(lambda: read().endswith("\n"), f"output of {pod}, {container}")
    return read()


def inside(whole: Whole, pod: str, script: str, container: str = "") -> str:
    chosen = [f"--container={container}"] if container else []
    return whole.kubectl("exec", pod, *chosen, "--", "sh", "-c", script)


def limit_bytes(whole: Whole, pod: str) -> int:
    """Return the GPU's memory as CUDA reports it in the pod. Check that a program can allocate all
    of it, and not 512 bytes more."""
    probed = json.loads(inside(whole, pod, "cuda-probe"))
    assert (probed["filled"], probed["more"]) == (0, 2), probed
    return int(probed["total"])


def sees_no_gpu(whole: Whole, pod: str, container: str) -> bool:
    seen = inside(whole, pod, "ls -d /dev/simgpu* /.gpuslice 2>&1; true", container)
    lines = seen.splitlines()
    return len(lines) == 2 and all("No such file" in line for line in lines)
