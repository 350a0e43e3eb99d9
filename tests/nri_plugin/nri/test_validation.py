"""The agent's checks after a creation: at validation, and at the container's start."""

from __future__ import annotations

import pytest

from nri_plugin.messages import nri_pb2 as nri
from tests.nri_plugin.fake_runtime import RequestFailed
from tests.nri_plugin.service_scene import GRANTS, HALF, Host, as_made, container, pod, serving

pytestmark = pytest.mark.node


@pytest.mark.parametrize("nri_version", [(0, 11, 0), (0, 12, 5)])
async def test_a_container_that_was_not_adjusted_does_not_start(
    host: Host, nri_version: tuple[int, int, int]
) -> None:
    async with serving(host.service(), nri_version=nri_version) as runtime:
        with pytest.raises(RequestFailed, match="without this agent"):
            await runtime.notify("StartContainer", pod(allocated=HALF), container())
        made = container()
        made.mounts.add(destination="/.gpuslice", source=str(host.run / "c0"))
        with pytest.raises(RequestFailed, match="without this agent"):
            await runtime.notify("StartContainer", pod(allocated=HALF), made)


async def test_a_container_that_cannot_be_examined_does_not_start(host: Host) -> None:
    async with serving(host.service()) as runtime:
        made = as_made(container(), await runtime.create(pod(allocated=HALF), container()))
        with pytest.raises(RequestFailed, match="cannot examine the container's root file system"):
            await runtime.notify("StartContainer", pod(allocated=HALF), made)


async def test_validation_rejects_changes_of_other_plugins(host: Host) -> None:
    of = pod(allocated=HALF, grants=GRANTS)
    handler = host.service()
    async with serving(handler) as runtime:
        reply = await runtime.create(of, container())
        assert reply is not None

        async def verdict(
            adjust: nri.ContainerAdjustment,
            what: nri.Container,
            pod: nri.PodSandbox = of,
            theirs: nri.ContainerAdjustment | None = None,
        ) -> str:
            request = nri.ValidateContainerAdjustmentRequest(pod=pod, container=what, adjust=adjust)
            runtime.claim(request)
            if theirs is not None:
                request.adjust.MergeFrom(theirs)
                runtime.claim(request, "60-other")
            answer = await runtime.call(
                "ValidateContainerAdjustment",
                request,
                nri.ValidateContainerAdjustmentResponse,
            )
            assert answer.reject == bool(answer.reason)
            return answer.reason

        assert await verdict(reply.adjust, container()) == ""
        without = nri.ContainerAdjustment()
        without.CopyFrom(reply.adjust)
        del without.mounts[:]
        assert "another NRI plugin changed the agent's adjustment: mount" in await verdict(
            without, container()
        )
        nothing = nri.ContainerAdjustment()
        same = await verdict(nothing, container(), theirs=reply.adjust)
        assert same == "", "another plugin's, with the same limits"
        assert "without this agent" in await verdict(nothing, container(9))
        web = pod(1, labels={})
        assert await verdict(nothing, container(9), web) == ""
        assert await verdict(nothing, container(9, "sidecar")) == ""
        gpu = nri.ContainerAdjustment()
        gpu.linux.devices.add(path="/dev/nvidia1", type="c", major=195)
        brought = "NRI plugin 60-other injected a GPU by device /dev/nvidia1"
        assert await verdict(nothing, container(9), web, gpu) == ""
        assert await verdict(nothing, container(9, "sidecar"), of, gpu) == ""
        counted = handler._parts.metrics.unlimited.labels("nri_plugin")
        assert counted._value.get() == 2
        assert brought in await verdict(reply.adjust, container(), of, gpu)
        removal = nri.ContainerAdjustment()
        removal.linux.devices.add(path="-/dev/nvidia0")
        assert await verdict(nothing, container(9), web, removal) == ""
