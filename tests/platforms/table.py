"""All platforms, in the order of the document; a platform's examination; the document itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuslice.contract import names
from tests.platforms import (
    aks,
    bottlerocket,
    eks,
    flatcar,
    gke_cos,
    gke_ubuntu,
    gpu_operator,
    k3s,
    openshift,
    rhel,
    rke2,
    talos,
    ubuntu,
)
from tests.platforms.node import Node
from tests.platforms.platform import BY_HAND, NRI, Platform
from tests.support import ROOT, table_below

DOCUMENT: Final = ROOT / "docs" / "platforms.md"
YES: Final = "yes"
_MODULES: Final = (
    *(ubuntu, rhel, gke_cos, gke_ubuntu, eks, bottlerocket, aks),
    *(openshift, rke2, k3s, talos, flatcar, gpu_operator),
)
PLATFORMS: Final[Mapping[str, Platform]] = {
    module.__name__.rpartition(".")[2]: module.PLATFORM for module in _MODULES
}
_HEADINGS: Final = (
    *("platform", "ready without a value", "label of the node", "the node", "driver's files"),
    "facts from",
)
SET_BY: Final = {"OpenShift": ", by GPU Operator", "GPU Operator with its driver container": ""}
BY_YOU: Final = ", by you or GPU feature discovery"
_TEXT: Final = """\
# Platforms

The table shows what `helm install` without values meets on the GPU nodes of each platform. `yes`
means that all of these hold:

- The agent is ready and uses the platform's own CDI spec of the GPUs where there is one.
- The doctor finds no fault.
- A container with a share is held to its limit.
- A container without a share that asks for all GPUs by its image has none
  ([exceptions](failures.md#nvidias-runtime-as-the-default)).
- The distributor writes its copy of the library, or logs that `/usr` is read-only.

Another text says what to set. The same then holds. The chart's pods run on nodes with the label in
the table. Where no component sets it, label the node:
`kubectl label node NODE nvidia.com/gpu.present=true`.

`python -m tests.platforms` writes this file. It makes a node like each platform's with directories
and driver, starts the chart's pod there, and records what it observes. Nothing of it ran on the
platform itself. The GPUs are simulated, SELinux and CRI-O's session are emulated, and the CDI specs
of releases before 1.20 are recordings. containerd is 2.4.2 without systemd. nvidia-ctk and
nvidia-container-runtime are the real ones. The agent has no API server there. Two things are tested
apart from the nodes: that a namespace of the level `baseline` refuses the agent's pod and a
`privileged` one admits it (Talos), and that the chart binds the SecurityContextConstraints of
OpenShift.

{table}

Talos 1.14 gives the pods of new clusters a PID namespace of their own, even with `hostPID`. It is
not known whether NVML's process numbers match there, and the doctor warns.
`workloadIsolation: false` in SecurityProfileConfig turns that namespace off.

[coexistence.md](coexistence.md) describes a device plugin or DRA driver of the platform. Pods with
a share must tolerate a platform's [taints](install.md#nodes).
"""


@dataclass(frozen=True, slots=True)
class Row:
    """What a platform's node shows."""

    platform: Platform
    ready: str

    def cells(self) -> Sequence[str]:
        driver = self.platform.driver
        files = f"`{driver.libraries}`"
        if driver.in_container:
            files += " in a container"
        cites = "; ".join(self.platform.cites)
        label = f"`{self.platform.label}`"
        if self.platform.label == BY_HAND:
            label += SET_BY.get(self.platform.name, BY_YOU)
        return [self.platform.name, self.ready, label, self.platform.node, files, cites]


def examine(platform: Platform) -> Row:
    """Observe a node of the platform; where it is not ready by itself, after its change too.

    Raises AssertionError if it is not ready then, or a share is not held to its limit.
    """
    change = platform.change
    with Node(platform, crio=platform.containerd.absent) as node:
        node.start_agent()
        why = node.outcome(change.because if change else "")
        if not why:
            _judge(node)
            return Row(platform, YES)
        assert change is not None
        advice = [each.do for each in node.doctor().values()]
        assert any(change.advice in each for each in advice), advice
        if not change.installs_containerd:
            node.apply(change)
            assert not node.outcome()
            _judge(node)
            return Row(platform, change.words)
    with Node(platform) as node:
        node.start_agent()
        assert not node.outcome()
        _judge(node)
    return Row(platform, change.words)


def _judge(node: Node) -> None:
    """The doctor finds no fault; the agent uses the platform's own CDI spec where there is one; a
    share is held to its limit; no other container has a GPU; the distributor's copy is there, or
    its log says why not; where NRI is off, the doctor says how it is turned on there."""
    findings = node.doctor()
    faults = {name: each for name, each in findings.items() if each.level == "fail"}
    assert not faults, faults
    toolkit = node.platform.toolkit
    if toolkit is not None and toolkit.describes_gpus:
        assert findings["cdi"].found.endswith(f" in {toolkit.spec}"), findings["cdi"]
    replaced = [line for line in node.log().splitlines() if "CDI spec replaced" in line]
    assert not replaced, replaced
    node.check_limit()
    assert not node.sees_gpus()
    copied = node.lab.namespace.outside(Path(names.HOST_LIBRARY)).exists
    assert not copied()
    said = node.distribute()
    assert copied() == ("/usr" not in node.platform.read_only), said
    assert copied() or "gpuslice's own pods need none" in said, said
    if node.platform.plugin is not None:
        node.start_plugin(node.platform.plugin)
        node.wait_for(node.platform.plugin.off)
    node.configure({"plugins": {NRI: {"disable": True}}})
    said = node.doctor()["nri"].do
    assert node.platform.nri_on in said.replace("\n", " "), said


def document(rows: Sequence[Row]) -> str:
    lines = [" | ".join(_HEADINGS), " | ".join("---" for _ in _HEADINGS)]
    lines += [" | ".join(row.cells()) for row in rows]
    return _TEXT.format(table="\n".join(f"| {line} |" for line in lines))


def committed(file: Path = DOCUMENT) -> Mapping[str, Sequence[str]]:
    """The committed rows, by platform."""
    return {row[0]: row for row in table_below(file.read_text(), " | ".join(_HEADINGS))}
