"""The agent adopts, sweeps and reports the containers that a runtime lists when it connects."""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import replace
from unittest.mock import Mock

import pytest

from gpuslice.contract import grants, names
from gpuslice.contract.grants import GpuGrant
from nri_plugin.host.files import RunDirectory
from nri_plugin.messages import nri_pb2 as nri
from nri_plugin.nri.service import Service
from nri_plugin.policy.ledger import Part
from nri_plugin.policy.model import Share
from nri_plugin.policy.notices import Notices
from tests.nri_plugin import service_scene as scene
from tests.nri_plugin.fake_runtime import RequestFailed
from tests.nri_plugin.objects import container, planned, pod
from tests.nri_plugin.service_scene import HALF, UUID, WHOLE, Host, as_made, refused, serving
from tests.support import until_async

pytestmark = pytest.mark.node

FULL = "insufficient free capacity"


def count_of(handler: Service, name: str, kind: str = "") -> float | None:
    labels = {"kind": kind} if kind else {}
    return handler._parts.metrics.registry.get_sample_value(f"gpuslice_{name}", labels)


def only_line(caplog: pytest.LogCaptureFixture, text: str) -> str:
    (line,) = (r.getMessage() for r in caplog.records if text in r.getMessage())
    return line


async def test_the_answer_does_not_wait_for_the_verification_of_its_containers(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    """Each container has a part of the GPU. The first one's record cannot be read, the eighth has
    lost its files, and 1000 directories are stale."""
    count, part = 200, scene.TOTAL // 200
    text = scene.allocated({names.RESOURCE_MEMORY: part, names.RESOURCE_CORE: 0})
    granted = grants.encode({"main": [GpuGrant(UUID, 0, part, 0)]})
    pods = [pod(number, allocated=text, grants=granted) for number in range(count + 1)]
    listed = [container(number, sandbox=number) for number in range(count)]
    files = RunDirectory(host.run, lambda: 7)
    for made in listed:
        made.state = nri.CONTAINER_RUNNING
        made.mounts.add(destination="/.gpuslice", source=str(host.run / made.id))
        if made.id != "c7":
            files.apply(planned(made.id, [Share(UUID, 0, part, 0)]))
    for number in range(1000):
        (host.run / f"deleted{number}").mkdir()
    slow = host.run / "c0" / "plan.json"
    slow.unlink()
    os.mkfifo(slow)
    handler = host.service()
    await host.inventory.refresh()
    async with serving(handler, pods[:count], listed, settled=False) as runtime:
        held = [hold.parts for hold in handler.records.ledger.holds()]
        assert held == [{UUID: Part(part, 0)}] * count
        life = handler.lifecycle
        assert life._verifying is not None and not life.verifier._tasks
        await asyncio.to_thread(slow.write_text, "{}")
        slow.unlink()
        await life.settled()
        not_in_place = count_of(handler, "limit_not_in_place_total")
        assert not_in_place == count, "none has our mounts"
        rest = container(count, sandbox=count)
        assert FULL in await refused(runtime, pods[count], rest)
        await runtime.stop(pods[0], listed[0])
        assert await runtime.create(pods[count], rest) is not None
        await handler.records.settled()
    assert len(host.keys()) == count
    assert "pod=train-7" in only_line(caplog, "whose grant is missing")


async def test_a_plan_that_cannot_be_read_in_time_is_logged(
    host: Host, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunDirectory, "plan", Mock(side_effect=TimeoutError))
    handler, listed = host.service(), [container(0, "beside"), container(1)]
    for number, place in enumerate(("/data", "/.gpuslice")):
        listed[number].state = nri.CONTAINER_RUNNING
        listed[number].mounts.add(destination=place, source=str(host.run / "c1"))
    async with serving(handler, [pod()], listed):
        await handler.lifecycle.settled()
    assert "problem=timeout" in only_line(caplog, "limit not checked")


async def test_a_container_in_creation_keeps_its_hold_for_one_synchronize(host: Host) -> None:
    """The runtime may have made its list before the agent answered the creation. So a container
    loses its hold only when a second list lacks it."""
    handler = host.service()
    async with serving(handler) as runtime:
        await runtime.create(pod(0, allocated=WHOLE), container(0))
    async with serving(handler) as runtime:
        assert host.keys() == {"pod-uid-0"}
        assert FULL in await refused(runtime, pod(1, allocated=WHOLE), container(1, sandbox=1))
    async with serving(handler):
        assert host.keys() == set()


async def test_synchronize_removes_orphans_and_records_users(host: Host) -> None:
    of, owned = pod(allocated=HALF), pod(1, allocated=HALF, grants=scene.GRANTS)
    (release := host.store / ("0" * 64)).mkdir(parents=True)
    async with serving(host.service()) as runtime:
        await until_async(lambda: not release.exists())
        shared = as_made(container(0), await runtime.create(of, container(0)))
        lone = as_made(container(1, sandbox=1), await runtime.create(owned, container(1)))
        await runtime.create(owned, container(2))
        assert host.keys() == {"pod-uid-0", "c1", "c2"}
    # A new agent starts, as after kill -9. The runtime lists two of the three containers.
    async with serving(host.service(), [of, owned], [shared, lone]) as runtime:
        assert host.keys() == {"pod-uid-0", "c1"}
        again = as_made(container(3, "side"), await runtime.create(of, container(3, "side")))
        await runtime.notify("RemoveContainer", of, shared)
        assert host.keys() == {"pod-uid-0", "c1"}
        await runtime.notify("RemoveContainer", of, again)
        await runtime.notify("RemoveContainer", owned, lone)
        assert host.keys() == set()


async def test_a_container_that_was_never_created_loses_its_files_and_its_hold(host: Host) -> None:
    """containerd was killed before it created a container. It does not list that container, and
    sends no removal event of it."""
    host.settings = replace(host.settings, making_s=0.05)
    called = ("main", "listed", "started")
    share = [GpuGrant(UUID, 0, 5 << 30, 10)]
    of = pod(allocated=HALF, grants=grants.encode(dict.fromkeys(called, share)))
    handler = host.service()
    async with serving(handler) as runtime:
        made = []
        for number, name in enumerate(called):
            what = container(number, name)
            made.append(as_made(what, await runtime.create(of, what)))
        assert host.keys() == {"c0", "c1", "c2"}
    async with serving(handler, [of], [made[1]]) as runtime:
        # no process of this container exists on the machine
        with contextlib.suppress(RequestFailed):
            await runtime.notify("StartContainer", of, made[2])
        await until_async(lambda: host.keys() == {"c1", "c2"})
        held = handler.records.ledger.holds
        await until_async(lambda: {hold.container_id for hold in held()} == {"c1", "c2"})


async def test_gpus_of_nvidias_default_runtime_from_before_the_agent_are_counted(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    """The agent reports a container that NVIDIA's runtime gave GPUs by default. It does not report
    containers whose variable is `void` or whose pod names a RuntimeClass."""
    pods = [pod(number, labels={}) for number in range(3)]
    pods[2].runtime_handler = "nvidia"
    for each in pods:
        state = host.settings.containerd_state
        scene.sandbox(state, each.id, "/usr/bin/nvidia-container-runtime")
    listed = [container(number, sandbox=number) for number in range(3)]
    listed[1].env[:] = ["NVIDIA_VISIBLE_DEVICES=void"]
    handler = host.service()
    await handler.node.look_for_plugins()
    async with serving(handler, pods, listed):
        pass
    assert count_of(handler, "stray_containers", "nvidia_runtime") == 1
    line = only_line(caplog, "from NVIDIA's runtime")
    assert "pod=train-0" in line and "delete the pod" in line


async def test_a_container_made_without_the_agent_keeps_its_pods_allocation(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    """A reboot without NRI's validator leaves such a container. The pod's author gets an event. No
    other pod gets the capacity, so that the pod can be recreated."""
    of, other = pod(allocated=HALF), pod(1, allocated=WHOLE)
    notices = Notices()
    handler = Service(replace(host.parts(), notices=notices))
    await host.inventory.refresh()
    async with serving(handler, [of], [container()]) as runtime:
        assert count_of(handler, "stray_containers", "not_adjusted") == 1
        line = only_line(caplog, "without its GPU")
        assert "namespace=team pod=train-0 uid=uid-0 container=main" in line
        text = await refused(runtime, other, container(1, sandbox=1))
        assert FULL in text and "team/train-0" in text
        notice = notices.first()
        assert notice is not None
        assert (notice.pod.uid, notice.reason) == ("uid-0", names.EVENT_WITHOUT_GPU)
        assert "delete the pod to recreate it" in notice.text
        # The kubelet starts another container instead, which is adjusted and holds the same share.
        made = as_made(container(2), await runtime.create(of, container(2)))
        assert [hold.adjusted for hold in handler.records.ledger.holds()] == [True]
        await runtime.notify("RemoveContainer", of, made)
        await runtime.notify("RemoveContainer", of, container())
        assert await runtime.create(other, container(3, sandbox=1)) is not None
