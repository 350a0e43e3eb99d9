"""nri_plugin.nri.connection: a container's events in every version of NRI, and how the handler's
results reach the runtime: adjustments of any size, verdicts, refusals, faults, late results."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from nri_plugin.messages import nri_pb2 as nri
from tests.nri_plugin.nri.connection_scene import (
    ADJUSTED,
    Hook,
    at_once,
    deaf,
    forever,
    later,
    objection,
    of_size,
    rig,
    session,
)
from tests.nri_plugin.objects import container, pod

CREATE = "CreateContainer"


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
        r.hooks[CREATE] = later(ADJUSTED)
        assert await r.create(2) == ADJUSTED
        for method in ("PostCreateContainer", "StartContainer", "PostStartContainer"):
            await r.runtime.notify(method, pod(2), container(2))
        await r.runtime.stop(pod(2), container(2))
        await r.runtime.notify("RemoveContainer", pod(2), container(2))
        await r.runtime.close()
        await r.plugin
        validated = ["Validate"] if nri_version >= (0, 10) else []
        events = [CREATE, *validated, "StartContainer", "StopContainer", "RemoveContainer"]
        assert r.asked == [("Synchronize", ""), *((event, "c2") for event in events)]
        assert [(info.name, info.version) for info in r.ready] == [("containerd", release)]
        assert r.runtime.registration == nri.RegisterPluginRequest(
            plugin_name="gpuslice", plugin_idx="50", nri_version="v0.12.5"
        )
        assert ("StateChange" if nri_version < (0, 12) else "StartContainer") in r.runtime.calls


@pytest.mark.parametrize("answer", [at_once, later])
async def test_a_creation_whose_request_has_ended_is_not_begun(answer: Callable[[], Hook]) -> None:
    """An agent that hung reads requests that the runtime sent before it dropped the agent. It
    ignores the creations among them, but handles stop and remove events."""
    async with session() as r:
        r.hooks = dict.fromkeys((CREATE, "StopContainer"), answer())
        message = nri.CreateContainerRequest(pod=pod(), container=container(1))
        r.runtime.send_call(CREATE, message.SerializeToString())
        ended = nri.StopContainerRequest(pod=pod(), container=container(2))
        r.runtime.send_call("StopContainer", ended.SerializeToString())
        await r.runtime.close()
        await r.plugin
        assert r.asked[1:] == [("StopContainer", "c2")]


async def test_concurrent_requests_are_answered_as_they_are_ready() -> None:
    gate = asyncio.Event()

    async def slowly() -> None:
        await gate.wait()

    async with session() as r:
        r.hooks[CREATE] = slowly
        slow = r.runtime.send_call(CREATE, b"")
        quick = r.runtime.send_call("StopContainer", b"")
        assert await r.runtime.receive_reply_frame() == (quick, b"")
        gate.set()
        assert await r.runtime.receive_reply_frame() == (slow, b"")


async def test_nothing_more_is_read_from_a_runtime_that_does_not_read() -> None:
    """Otherwise pending answers would accumulate in memory."""
    async with session() as r:
        r.hooks[CREATE] = at_once(of_size(1 << 20))
        r.runtime.trunk.stop_reading()
        for _ in range(200):
            r.runtime.send_call(CREATE, b"")
            await asyncio.sleep(0)
        assert len(r.asked) < 100
        r.plugin.cancel()


# --- answers


async def test_a_reply_of_any_size_crosses_or_fails_the_container_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with session() as r:
        for size in (5000, 3 << 20):
            r.hooks[CREATE] = later(of_size(size))
            assert await r.create() == of_size(size)
        r.hooks[CREATE] = later(of_size(4 << 20))
        await r.fails("8: a reply of .* bytes, where at most 4194304 are allowed")
        r.hooks.clear()
        assert await r.create() is not None
    assert "larger than the protocol allows" in caplog.text


@pytest.mark.parametrize("answer", [at_once, later])
async def test_refusals_reach_the_user_and_bugs_fail_their_request_alone(
    answer: Callable[..., Hook], caplog: pytest.LogCaptureFixture
) -> None:
    refusal, bug, cancelled = objection("no GPU-7 here"), ValueError("a bug"), "CancelledError"
    async with session() as r:
        r.hooks[CREATE] = answer()
        assert await r.create() == nri.CreateContainerResponse()
        r.hooks[CREATE] = answer(ADJUSTED)
        assert await r.create() == ADJUSTED
        r.hooks[CREATE] = answer(objection("no GPU-7 on this node: \udcff é"))
        failed = await r.fails("GPU-7")
        assert (failed.code, failed.message) == (
            2,
            'gpuslice refuses container "main" of pod team/train-0: the'
            " agent cannot create the container's files: no GPU-7 on this node: \\udcff \\xe9;"
            " run the doctor on the node (python -m nri_plugin doctor)",
        )
        r.hooks[CREATE] = answer(bug)
        await r.fails("2: gpuslice failed at CreateContainer: ValueError: a bug")
        r.hooks[CREATE] = answer(asyncio.CancelledError())
        await r.fails(cancelled)
        r.hooks = {"StartContainer": answer(refusal)}
        starting = r.runtime.notify("StartContainer", pod(), container())
        await r.fails("2: .*: no GPU-7 here", starting)
        for error, text in (
            (refusal, "no GPU-7 here"),
            (bug, "ValueError: a bug"),
            (asyncio.CancelledError(), cancelled),
        ):
            r.hooks["Validate"] = answer(error)
            await r.fails(f"rejected .*: .*{text}")
        r.hooks["Validate"] = answer()
        assert await r.create() is not None
    outcomes = [word for word in caplog.text.split() if word.startswith("outcome=")]
    ends = ["refused", "error", "error"]
    assert outcomes == [f"outcome={end}" for end in (*ends, "refused", *ends)]


@pytest.mark.parametrize("hook", [forever, deaf])
async def test_a_late_handler_is_answered_for_before_the_runtime_gives_up(
    hook: Hook, caplog: pytest.LogCaptureFixture
) -> None:
    async with session() as r:
        r.hooks[CREATE] = hook
        r.runtime.request_timeout_s = 1
        await r.fails(r"did not decide .* within 0\.75 s")
        r.hooks.clear()
        r.runtime.request_timeout_s = 60
        assert await r.create() is not None
    assert "outcome=late" in caplog.text
