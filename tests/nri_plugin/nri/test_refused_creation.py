"""Creations that the agent refuses, also at validation or start. Nothing of them is left."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from nri_plugin.host.files import RunDirectory
from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.policy.gpu_modes import Assigned, Offer
from tests.nri_plugin import service_scene as scene
from tests.nri_plugin.fake_runtime import RequestFailed
from tests.nri_plugin.objects import clear, container, pod
from tests.nri_plugin.service_scene import HALF, UUID, WHOLE, Host, as_made, refused, serving

pytestmark = pytest.mark.node

SHARE = pod(allocated=HALF)
GRANTED = pod(allocated=HALF, grants=scene.GRANTS)


async def test_no_share_is_given_of_a_gpu_that_a_pod_holds_whole(host: Host) -> None:
    """Every share is refused until the kubelet has reported its pods. The kubelet retries."""
    host.settings = replace(host.settings, whole_gpus=Offer(any=True))
    service = host.service()
    modes = service.node.modes
    async with serving(service) as runtime:
        text = await refused(runtime, GRANTED, container())
        assert "the agent cannot list the GPUs that are assigned whole to pods: " in text
        modes.assigned(Assigned({UUID: "team/whole"}, {}), frozenset(), 0)
        text = await refused(runtime, GRANTED, container())
        wanted = f"invalid value {UUID}: must be a shared GPU; it is assigned whole"
        assert f"{wanted} (nvidia.com/gpu) to team/whole" in text
        assert host.keys() == set()
        beside = await runtime.create(GRANTED, container(1, "sidecar"))
        assert beside is not None and not beside.adjust.mounts
        whole = container(2, sandbox=1)
        whole.linux.devices.add(path="/dev/nvidia0", type="c", major=195, minor=0)
        untouched = await runtime.create(pod(1, {}), whole)
        assert untouched == nri.CreateContainerResponse(), "the runtime gave it the GPU"
        modes.assigned(Assigned({}, {}), frozenset(), 0)
        assert await runtime.create(GRANTED, container()) is not None


async def test_refusals_name_pod_container_field_and_value(host: Host) -> None:
    potatoes = HALF.replace('"50"', '"12 potatoes"', 1)
    async with serving(host.service()) as runtime:
        text = await refused(runtime, pod(allocated=potatoes), container())
        assert text == (
            'gpuslice refuses container "main" of pod team/train-0: annotation'
            " scheduling.koordinator.sh/device-allocated:"
            " gpu[0].resources.koordinator.sh/gpu-core: invalid value '12 potatoes': must be a"
            " quantity such as 50, 11520Mi or 12Gi; delete the pod to reschedule it"
        )
        labels = {scene.LABEL: "x" * 9999}
        assert len(await refused(runtime, pod(labels=labels, allocated=HALF), container())) == 2000
        # The next valid creation succeeds.
        assert await runtime.create(SHARE, container()) is not None


async def test_what_is_missing_on_the_node_refuses_until_it_is_there(host: Host) -> None:
    handler = host.service()
    async with serving(handler) as runtime:
        host.library.unlink()
        text = await refused(runtime, SHARE, container())
        assert f"the library is missing on this node: {host.library}: No such file" in text
        host.library.write_bytes(b"\x7fELF")
        spec = (host.cdi / "gpu.json").rename(host.cdi / "gpu.gone")
        text = await refused(runtime, SHARE, container())
        assert f"CDI device nvidia.com/gpu={UUID}: not found" in text
        spec.rename(host.cdi / "gpu.json")
        assert await runtime.create(SHARE, container()) is not None
        (host.cdi / "gpu.json").unlink()
        await refused(runtime, SHARE, container(1, "side"))
        await handler._worker.run(lambda: None, 60)
        assert host.keys() == {"pod-uid-0"}, "the first container uses them"


async def test_gpus_that_are_not_known(host: Host) -> None:
    async with serving(host.service(json.dumps({"exit": "NVML: no"}))) as runtime:
        text = await refused(runtime, SHARE, container())
        assert "the agent cannot list this node's GPUs: NVML: no" in text
        assert host.keys() == set()


async def test_a_creation_that_another_plugin_refused_after_the_agent_holds_nothing(
    host: Host,
) -> None:
    """The runtime undoes the creation. Its events describe the container without our mounts."""
    of, what = pod(1, allocated=WHOLE), container(1, sandbox=1)
    async with serving(host.service()) as runtime:
        assert await runtime.create(of, what)
        await runtime.stop(of, what)
        await runtime.notify("RemoveContainer", of, what)
        assert host.keys() == set()
        assert await runtime.create(pod(2, allocated=WHOLE), container(2, sandbox=2))


async def test_a_step_that_is_late_is_refused_by_its_name(host: Host) -> None:
    """The refusal names the step that took too long. The ledger drops the hold, and the agent
    removes files that are made after the refusal."""
    free = threading.Event()
    handler = host.service()
    async with serving(handler) as runtime:
        await host.inventory.refresh()
        stuck = asyncio.create_task(handler._worker.run(free.wait, 60))
        handler.lifecycle._settings = replace(host.settings, work_deadline_s=1.0)
        text = await refused(runtime, SHARE, container())
        assert "the node took too long to make the container's files" in text
        assert not handler.records.ledger.holds()
        free.set()
        await stuck
        await handler._worker.run(lambda: None, 60)
        assert host.keys() == set()


@pytest.fixture
def full_run_directory(host: Host) -> Iterator[None]:
    """Mount a tmpfs as the run directory, with no space for one more directory."""
    host.run.mkdir()
    size = ["-o", "size=4k,nr_inodes=2"]
    subprocess.run(["mount", "-t", "tmpfs", *size, "tmpfs", host.run], check=True)
    (host.run / ".lock").touch()
    yield
    clear(RunDirectory(host.run, lambda: 1))
    subprocess.run(["umount", host.run], check=True)


async def test_a_full_run_directory_refuses_and_leaves_nothing(
    host: Host, full_run_directory: None
) -> None:
    handler = host.service()
    async with serving(handler) as runtime:
        text = await refused(runtime, SHARE, container())
        assert "the agent cannot create the container's files" in text
        assert f"{host.run}/pod-uid-0: No space left on device" in text
        assert host.keys() == {".lock"} and not handler.records.ledger.holds()
        (host.run / ".lock").unlink()
        assert await runtime.create(SHARE, container()) is not None


# --- after the creation


@pytest.mark.parametrize("nri_version", [(0, 11, 0), (0, 12, 5)])
async def test_a_container_that_was_not_adjusted_or_cannot_be_examined_does_not_start(
    host: Host, nri_version: tuple[int, int, int]
) -> None:
    async with serving(host.service(), nri_version=nri_version) as runtime:
        made = container()
        made.mounts.add(destination="/.gpuslice", source=str(host.run / "c0"))
        for each in (container(), made):
            with pytest.raises(RequestFailed, match="without this agent"):
                await runtime.notify("StartContainer", SHARE, each)
        made = as_made(container(), await runtime.create(SHARE, container()))
        with pytest.raises(RequestFailed, match="cannot examine the container's root file system"):
            await runtime.notify("StartContainer", SHARE, made)


async def test_validation_rejects_changes_of_other_plugins(host: Host) -> None:
    handler = host.service()
    async with serving(handler) as runtime:
        ours = await runtime.create(GRANTED, container())
        assert ours is not None

        async def verdict(
            what: nri.Container,
            adjust: nri.ContainerAdjustment | None = None,
            theirs: nri.ContainerAdjustment | None = None,
            of: nri.PodSandbox = GRANTED,
        ) -> str:
            request = nri.ValidateContainerAdjustmentRequest(pod=of, container=what, adjust=adjust)
            runtime.claim(request)
            request.adjust.MergeFrom(theirs or nri.ContainerAdjustment())
            runtime.claim(request, "60-other")
            method, reply = "ValidateContainerAdjustment", nri.ValidateContainerAdjustmentResponse
            answer = await runtime.call(method, request, reply)
            assert answer.reject == bool(answer.reason)
            return answer.reason

        assert await verdict(container(), ours.adjust) == ""
        without = nri.ContainerAdjustment()
        without.CopyFrom(ours.adjust)
        del without.mounts[:]
        changed = "another NRI plugin changed the agent's adjustment: mount"
        assert changed in await verdict(container(), without)
        same = await verdict(container(), theirs=ours.adjust)
        assert same == "", "another plugin's, with the same limits"
        other, sidecar, web = container(9), container(9, "sidecar"), pod(1, labels={})
        assert "without this agent" in await verdict(other)
        assert await verdict(other, of=web) == ""
        assert await verdict(sidecar) == ""
        gpu, removal = nri.ContainerAdjustment(), nri.ContainerAdjustment()
        gpu.linux.devices.add(path="/dev/nvidia1", type="c", major=195)
        assert await verdict(other, theirs=gpu, of=web) == ""
        assert await verdict(sidecar, theirs=gpu) == ""
        counted = handler._parts.metrics.unlimited.labels("nri_plugin")
        assert counted._value.get() == 2
        brought = "NRI plugin 60-other injected a GPU by device /dev/nvidia1"
        assert brought in await verdict(container(), ours.adjust, gpu)
        removal.linux.devices.add(path="-/dev/nvidia0")
        assert await verdict(other, theirs=removal, of=web) == ""
