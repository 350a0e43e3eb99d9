"""nri_plugin.nri.connection: a container's events in every version of NRI, and how the handler's
results reach the runtime: adjustments of any size, verdicts, refusals, faults, late results."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from nri_plugin.messages import nri_pb2 as nri
from tests.nri_plugin.nri.connection_scene import deaf, forever, objection, raiser, rig, session
from tests.nri_plugin.objects import container, pod

ADJUSTMENT = nri.ContainerAdjustment(env=[nri.KeyValue(key="A", value="1")])


def of_size(size: int) -> nri.ContainerAdjustment:
    return nri.ContainerAdjustment(annotations={"size": "x" * size})


@pytest.mark.parametrize(
    ("release", "nri_version"),
    [
        ("v1.7.26", (0, 8, 0)),
        ("1.7.35", (0, 8, 0)),
        ("v2.2.7", (0, 11, 0)),
        ("2.4.2", (0, 12, 3)),
        ("2.5.0", (0, 12, 5)),
    ],
)
async def test_a_containers_lifecycle_in_every_version(
    release: str, nri_version: tuple[int, int, int]
) -> None:
    async with rig(runtime=("containerd", release), nri_version=nri_version) as r:
        await r.runtime.handshake([pod(1)], [container(1)])
        r.handler.adjustment = ADJUSTMENT
        assert await r.create(2) == nri.CreateContainerResponse(adjust=ADJUSTMENT)
        for method in ("PostCreateContainer", "StartContainer", "PostStartContainer"):
            await r.runtime.notify(method, pod(2), container(2))
        await r.runtime.stop(pod(2), container(2))
        await r.runtime.notify("RemoveContainer", pod(2), container(2))
        await r.runtime.close()
        await r.plugin
        validated = ["validate"] if nri_version >= (0, 10) else []
        events = ["create", *validated, "start", "stop", "remove"]
        of_container = [(event, "c2") for event in events]
        assert r.handler.asked == [("synchronize", ""), *of_container]
        assert [(info.name, info.version) for info in r.ready] == [("containerd", release)]
        assert r.runtime.registration == nri.RegisterPluginRequest(
            plugin_name="gpuslice", plugin_idx="50", nri_version="v0.12.5"
        )
        assert ("StateChange" if nri_version < (0, 12) else "StartContainer") in r.runtime.calls


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
        assert r.handler.asked[1:] == [("stop", "c2")]


async def test_concurrent_requests_are_answered_as_they_are_ready() -> None:
    async with session() as r:
        gate = asyncio.Event()
        r.handler.hooks["create"] = gate.wait
        slow = r.runtime.send_call("CreateContainer", b"")
        quick = r.runtime.send_call("StopContainer", b"")
        assert await r.runtime.receive_reply_frame() == (quick, b"")
        gate.set()
        assert await r.runtime.receive_reply_frame() == (slow, b"")


async def test_of_a_runtime_that_does_not_read_nothing_more_is_read() -> None:
    """So that the pending answers do not grow in our memory."""
    async with session() as r:
        r.handler.at_once, r.handler.adjustment = True, of_size(1 << 20)
        r.runtime.trunk.stop_reading()
        for _ in range(200):
            r.runtime.send_call("CreateContainer", b"")
            await asyncio.sleep(0)
        assert len(r.handler.asked) < 100
        r.plugin.cancel()


# --- answers


async def test_a_reply_of_any_size_crosses_or_fails_the_container_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with session() as r:
        for size in (5000, 3 << 20):
            r.handler.adjustment = of_size(size)
            assert await r.create() == nri.CreateContainerResponse(adjust=of_size(size))
        r.handler.adjustment = of_size(4 << 20)
        await r.fails("8: a reply of")
        r.handler.adjustment = None
        assert await r.create() is not None
    assert "larger than the protocol allows" in caplog.text


async def test_a_verdict_may_await_an_examination() -> None:
    async with session() as r:
        r.handler.hooks["validate"] = lambda: asyncio.sleep(0)
        assert await r.create() is not None
        r.handler.objection = objection("a GPU of another's")
        await r.fails(r"rejected .*: a GPU of another's")


async def test_a_refusal_reaches_the_user_unchanged() -> None:
    async with session() as r:
        r.handler.hooks["create"] = raiser(objection("no GPU-7 on this node: \udcff é"))
        failed = await r.fails("GPU-7")
        assert (failed.code, failed.message) == (
            2,
            'gpuslice refuses container "main" of pod team/train-0: the'
            " agent cannot create the container's files: no GPU-7 on this node: \\udcff \\xe9;"
            " run the doctor on the node (python -m nri_plugin doctor)",
        )
        del r.handler.hooks["create"]
        r.handler.hooks["start"] = raiser(objection("the image brings a preload of its own"))
        starting = r.runtime.notify("StartContainer", pod(), container())
        await r.fails(r"2: .*: the image brings a preload of its own", starting)
        r.handler.objection = objection("another plugin took our mount away")
        await r.fails(r"rejected .*: another plugin took our mount away")


@pytest.mark.parametrize("method", ["create", "validate"])
@pytest.mark.parametrize(
    "error", [ValueError("a bug"), asyncio.CancelledError()], ids=["bug", "cancelled"]
)
async def test_a_bug_in_the_handler_fails_the_request_and_is_logged(
    method: str, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    async with session() as r:
        if method == "create":
            r.handler.hooks[method] = raiser(error)
        else:
            r.handler.objection = error
        await r.fails(type(error).__name__)
        r.handler.hooks.clear()
        r.handler.objection = None
        assert await r.create() is not None
    assert "outcome=error" in caplog.text


@pytest.mark.parametrize("hook", [forever, deaf])
async def test_a_late_handler_is_answered_for_before_the_runtime_gives_up(
    hook: Callable[[], Awaitable[None]], caplog: pytest.LogCaptureFixture
) -> None:
    async with session() as r:
        r.handler.hooks["create"] = hook
        r.runtime.request_timeout_s = 1
        await r.fails(r"did not decide .* within 0\.75 s")
        del r.handler.hooks["create"]
        r.runtime.request_timeout_s = 60
        assert await r.create() is not None
    assert "outcome=late" in caplog.text


async def test_a_handler_that_answers_at_once_has_the_same_replies(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with session() as r:
        r.handler.at_once = True
        assert await r.create() == nri.CreateContainerResponse()
        r.handler.adjustment = ADJUSTMENT
        assert await r.create() == nri.CreateContainerResponse(adjust=ADJUSTMENT)
        r.handler.objection = objection("no GPU-7 on this node")
        await r.fails(r"2: .*: no GPU-7 on this node")
        r.handler.objection = ValueError("a bug")
        await r.fails("failed at CreateContainer: ValueError: a bug")
    outcomes = [word for word in caplog.text.split() if word.startswith("outcome=")]
    assert outcomes == ["outcome=refused", "outcome=error"]
