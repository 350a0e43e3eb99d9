"""nri_plugin.nri.connection: a container's events in every version of NRI, replies of any size."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from nri_plugin.messages import nri_pb2 as nri
from tests.nri_plugin.fake_runtime import RequestFailed
from tests.nri_plugin.nri.connection_scene import rig, session
from tests.nri_plugin.objects import container, pod

VERSIONS: list[dict[str, Any]] = [
    {"runtime": ("containerd", "v1.7.26"), "nri_version": (0, 8, 0)},
    {"runtime": ("containerd", "1.7.35"), "nri_version": (0, 8, 0)},
    {"runtime": ("containerd", "v2.2.7"), "nri_version": (0, 11, 0)},
    {"runtime": ("containerd", "2.4.2"), "nri_version": (0, 12, 3)},
    {"runtime": ("containerd", "2.5.0"), "nri_version": (0, 12, 5)},
]
"""Runtimes and their NRI versions; those before 0.12 do not report theirs."""


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_creation_whose_request_has_ended_is_not_begun(at_once: bool) -> None:
    """The process hung, and reads requests that the runtime sent before it dropped the plugin; stop
    and remove events still count."""
    async with session() as r:
        r.handler.at_once = at_once
        message = nri.CreateContainerRequest(pod=pod(), container=container(1))
        r.runtime.send_call("CreateContainer", message.SerializeToString())
        ended = nri.StopContainerRequest(pod=pod(), container=container(2))
        r.runtime.send_call("StopContainer", ended.SerializeToString())
        await r.runtime.close()
        await r.plugin
        assert r.handler.asked[1:] == [("stop", "container-2")]


@pytest.mark.parametrize("version", VERSIONS, ids=lambda v: "-".join(v["runtime"]))
async def test_a_containers_lifecycle_in_every_version(version: dict[str, Any]) -> None:
    async with rig(**version) as r:
        await r.runtime.handshake([pod(1)], [container(1)])
        r.handler.adjustment = nri.ContainerAdjustment(
            env=[nri.KeyValue(key="NVIDIA_VISIBLE_DEVICES", value="GPU-1")]
        )
        reply = await r.runtime.create(pod(2), container(2))
        assert reply is not None
        assert reply.adjust == r.handler.adjustment
        for method in ("PostCreateContainer", "StartContainer", "PostStartContainer"):
            await r.runtime.notify(method, pod(2), container(2))
        await r.runtime.stop(pod(2), container(2))
        await r.runtime.notify("RemoveContainer", pod(2), container(2))
        await r.runtime.close()
        await r.plugin
        validated = [("validate", "container-2")] if version["nri_version"] >= (0, 10) else []
        assert r.handler.asked == [
            ("synchronize", ""),
            ("create", "container-2"),
            *validated,
            ("start", "container-2"),
            ("stop", "container-2"),
            ("remove", "container-2"),
        ]
        assert [(info.name, info.version) for info in r.ready] == [version["runtime"]]
        assert r.runtime.registration == nri.RegisterPluginRequest(
            plugin_name="gpuslice", plugin_idx="50", nri_version="v0.12.5"
        )
        style = "StateChange" if version["nri_version"] < (0, 12) else "StartContainer"
        assert style in r.runtime.calls


@pytest.mark.parametrize("size", [5000, 3 << 20], ids=str)
async def test_a_reply_of_any_size_crosses(size: int) -> None:
    async with session() as r:
        r.handler.adjustment = nri.ContainerAdjustment(annotations={"size": "x" * size})
        reply = await r.runtime.create(pod(), container())
        assert reply is not None
        assert reply.adjust == r.handler.adjustment


async def test_a_reply_over_the_limit_fails_the_container_and_keeps_the_plugin(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with session() as r:
        r.handler.adjustment = nri.ContainerAdjustment(annotations={"size": "x" * (4 << 20)})
        with pytest.raises(RequestFailed, match="8: a reply of"):
            await r.runtime.create(pod(), container())
        r.handler.adjustment = None
        assert await r.runtime.create(pod(), container()) is not None
    assert "larger than the protocol allows" in caplog.text


async def test_of_a_runtime_that_does_not_read_nothing_more_is_read() -> None:
    """So that the pending answers do not grow in our memory."""
    async with session() as r:
        r.handler.at_once = True
        r.handler.adjustment = nri.ContainerAdjustment(annotations={"size": "x" * (1 << 20)})
        r.runtime.stop_reading()
        for _ in range(200):
            r.runtime.send_call("CreateContainer", b"")
            await asyncio.sleep(0)
        assert len(r.handler.asked) < 100
        r.plugin.cancel()


async def test_concurrent_requests_are_answered_as_they_are_ready() -> None:
    async with session() as r:
        gate = asyncio.Event()

        async def hook() -> None:
            await gate.wait()

        r.handler.hooks["create"] = hook
        slow = r.runtime.send_call("CreateContainer", b"")
        quick = r.runtime.send_call("StopContainer", b"")
        assert await r.runtime.receive_reply_frame() == (quick, b"")
        gate.set()
        assert await r.runtime.receive_reply_frame() == (slow, b"")
