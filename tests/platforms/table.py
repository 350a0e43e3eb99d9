"""All platforms in the order of the document, a platform's examination, and the document."""

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
    gke,
    gpu_operator,
    openshift,
    rancher,
    rhel,
    talos,
    ubuntu,
)
from tests.platforms.node import Node, running
from tests.platforms.platform import BY_HAND, NRI, Platform
from tests.support import ROOT, table_below, until

DOCUMENT: Final = ROOT / "docs" / "platforms.md"
YES: Final = "yes"
PLATFORMS: Final[Mapping[str, Platform]] = {
    "ubuntu": ubuntu.PLATFORM,
    "rhel": rhel.PLATFORM,
    "gke_cos": gke.COS,
    "gke_ubuntu": gke.UBUNTU,
    "eks": eks.PLATFORM,
    "bottlerocket": bottlerocket.PLATFORM,
    "aks": aks.PLATFORM,
    "openshift": openshift.PLATFORM,
    "rke2": rancher.RKE2,
    "k3s": rancher.K3S,
    "talos": talos.PLATFORM,
    "flatcar": flatcar.PLATFORM,
    "gpu_operator": gpu_operator.PLATFORM,
}
_HEADINGS: Final = (
    *("platform", "ready without a value", "label of the node", "the node", "driver's files"),
    "facts from",
)
SET_BY: Final = {"OpenShift": ", by GPU Operator", "GPU Operator with its driver container": ""}
BY_YOU: Final = ", by you or GPU feature discovery"


@dataclass(frozen=True, slots=True)
class Row:
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
    """Observe a node of the platform, and again after its change if it is not ready by itself.

    Raises AssertionError if it is still not ready, or if a share is not held to its limit.
    """
    change = platform.change
    with running(platform, crio=platform.containerd.absent) as node:
        node.start_agent()
        why = node.outcome(change.because if change else "")
        if not why:
            _judge(node)
            return Row(platform, YES)
        assert change is not None
        advice = [each.do for each in node.doctor().values()]
        assert any(change.advice in each for each in advice), advice
        if not change.installs_containerd:
            node.configure(change.config)
            assert not node.outcome()
            _judge(node)
            return Row(platform, change.words)
    with running(platform) as node:
        node.start_agent()
        assert not node.outcome()
        _judge(node)
    return Row(platform, change.words)


def _judge(node: Node) -> None:
    """Check that the doctor finds no fault, the agent uses the platform's CDI spec if there is one,
    a share is held to its limit, and no other container has a GPU. The distributor's copy must
    exist, or its log say why not. Where NRI is off, the doctor must say how to turn it on."""
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
        off = node.platform.plugin.off
        until(lambda: off in node.readyz()[1], off)
    node.configure({"plugins": {NRI: {"disable": True}}})
    said = node.doctor()["nri"].do
    assert node.platform.nri_on in said.replace("\n", " "), said


def document(rows: Sequence[Row]) -> str:
    lines = [" | ".join(each) for each in (_HEADINGS, ["---"] * len(_HEADINGS))]
    lines += [" | ".join(row.cells()) for row in rows]
    before, _, rest = DOCUMENT.read_text().partition(f"| {lines[0]} |\n")
    after = rest[rest.index("\n\n") :]
    return before + "\n".join(f"| {line} |" for line in lines) + after


def committed() -> Mapping[str, Sequence[str]]:
    return {row[0]: row for row in table_below(DOCUMENT.read_text(), " | ".join(_HEADINGS))}
