"""A container's life without Kubernetes' annotations and without NRI: claims are of a table."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from gpuslice.contract import grant_file, names
from nri_plugin.containers.lifecycle import Lifecycle
from nri_plugin.policy import kube_objects
from nri_plugin.policy.model import Claim, Container, Device, Gpu, Pod, Share
from nri_plugin.policy.refusals import Reason, Refused
from tests.nri_plugin.service_scene import UUID, Host

POD = Pod("uid-0", "team", "plain", runtime_handler="runc")
MAIN, BESIDE = Container("c0", "main"), Container("c1", "beside")
SHARE = Share(UUID, 0, 5 << 30, 20)


@dataclass
class Table:
    """A ClaimSource: claims by container name."""

    claims: Mapping[str, Claim] = field(default_factory=dict)

    def may_claim(self, labels: Mapping[str, str], annotations: Mapping[str, str]) -> bool:
        return bool(self.claims)

    def has_shares(self, pod: Pod) -> bool:
        return bool(self.claims)

    def claim(self, pod: Pod, container_name: str, gpus: Sequence[Gpu]) -> Claim | None:
        return self.claims.get(container_name, Claim()) if self.claims else None

    def is_uncapped(self, pod: Pod, uuid: str, minor: int) -> bool:
        return False


@asynccontextmanager
async def living(host: Host) -> AsyncIterator[Lifecycle]:
    claims = Table({"main": Claim([SHARE], allocated=[SHARE])})
    life = Lifecycle(replace(host.parts(), claims=claims))
    try:
        await host.inventory.refresh()
        yield life
    finally:
        life.close()
        await host.inventory.close()


async def test_a_claim_of_any_source_becomes_a_share(host: Host) -> None:
    async with living(host) as life:
        await life.listed([])
        adjustment = await life.created(POD, MAIN)
        assert adjustment is not None and adjustment.key == "c0"
        assert dict(adjustment.env)["NVIDIA_VISIBLE_DEVICES"] == UUID
        grant = grant_file.decode((host.run / "c0/grant").read_bytes())
        assert grant is not None
        assert [(gpu.uuid, gpu.limit_bytes) for gpu in grant.gpus] == [(UUID, 5 << 30)]
        beside = await life.created(POD, BESIDE)
        assert beside is not None and dict(beside.env) == {"NVIDIA_VISIBLE_DEVICES": "void"}
        assert life._parts.notices.first() is None, "its pod wants it so"
        life.records.ledger.drop("c0")
        assert not life.records.ledger.holds() and (host.run / "c0").exists()
        await life.records.removed("c0", "c0")
        assert not (host.run / "c0").exists()


async def test_an_event_names_the_driver_capabilities_that_are_cut(host: Host) -> None:
    asked = replace(MAIN, env=("NVIDIA_DRIVER_CAPABILITIES=compute,video",))
    async with living(host) as life:
        await life.created(POD, asked)
        notice = life._parts.notices.first()
    assert notice is not None
    text = 'container "main": driver capabilities cut: video: they are not injected'
    assert notice.text.startswith(text)
    event = kube_objects.event(notice, notice.text, "node-1", "", "name", "at")
    assert (event["reason"], event["type"]) == (names.EVENT_CAPABILITIES_CUT, "Normal")


async def test_a_container_with_a_claim_does_not_start_without_it(host: Host) -> None:
    async with living(host) as life:
        checked = life.starts(POD, MAIN, None)
        assert checked is not None
        with pytest.raises(Refused) as refused:
            await checked
        assert refused.value.refusal.reason is Reason.NOT_ADJUSTED


async def test_a_container_with_another_plugins_gpu_does_not_start(host: Host) -> None:
    """NRI before 0.10 shows other plugins' adjustments only in the container that results."""
    async with living(host) as life:
        plan = await life.created(POD, MAIN)
        assert plan is not None and plan.key is not None
        more = (*plan.devices, Device("/dev/nvidia7", "c", 195, 7))
        with pytest.raises(Refused, match="injected a GPU by device /dev/nvidia7") as refused:
            life.starts(POD, replace(MAIN, mounts=plan.mounts, devices=more), plan.key)
        assert refused.value.refusal.reason is Reason.GPU_FOREIGN
