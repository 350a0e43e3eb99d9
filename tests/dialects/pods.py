"""The pods of the examples, and many pods of one kind."""

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
