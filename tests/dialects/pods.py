"""The pods of the examples, many pods of one kind, and what programs in these pods see."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from tests.e2e.whole import Whole
from tests.support import ROOT, until

EXAMPLES = ROOT / "docs" / "examples"
RECORDED = ROOT / "tests" / "dialects" / "recorded"


def remove(whole: Whole) -> None:
    for namespace in ("default", "gpu-workload"):
        options = ("--all", "--grace-period=1", f"-n={namespace}", "--timeout=100s")
        whole.kubectl("delete", "pods", *options)


def apply(whole: Whole, name: str) -> None:
    whole.kubectl("apply", "-f", str(EXAMPLES / name))


def asleep(name: str) -> dict[str, Any]:
    """Return an example whose containers sleep, so that a test can enter them."""
    pod: dict[str, Any] = yaml.safe_load((EXAMPLES / name).read_text())
    for container in pod["spec"]["containers"]:
        container.pop("args", None)
        container["command"] = ["sleep", "1d"]
    return pod


def create(whole: Whole, pods: Sequence[Mapping[str, Any]]) -> None:
    given = json.dumps({"apiVersion": "v1", "kind": "List", "items": pods})
    whole.kubectl("create", "-f", "-", given=given)


def fields(whole: Whole, pod: str, namespace: str = "default") -> Any:
    return json.loads(whole.kubectl("get", "pod", pod, f"-n={namespace}", "-o=json"))


def bound(whole: Whole) -> list[str]:
    listed = json.loads(whole.kubectl("get", "pods", "-o=json"))["items"]
    return [each["metadata"]["name"] for each in listed if each["spec"].get("nodeName")]


def waits(whole: Whole, pod: str) -> str:
    """Return the event's text that states why the pod waits."""
    of = f"--field-selector=involvedObject.name={pod},reason=FailedScheduling"

    def said() -> str:
        return whole.kubectl("get", "events", of, "-o=jsonpath={.items[*].message}")

    until(lambda: bool(said()), f"the event of {pod}")
    return said()


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
