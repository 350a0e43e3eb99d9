"""How the handler's results reach the runtime: verdicts, refusals, faults, late results."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from nri_plugin.messages import nri_pb2 as nri
from tests.nri_plugin.fake_runtime import RequestFailed
from tests.nri_plugin.nri.connection_scene import deaf, forever, objection, raiser, session
from tests.nri_plugin.objects import container, pod


@pytest.mark.parametrize("objects", [False, True])
async def test_a_verdict_may_await_an_examination(objects: bool) -> None:
    async with session() as r:
        looked: list[bool] = []

        async def look() -> None:
            await asyncio.sleep(0)
            looked.append(True)

        r.handler.hooks["look"] = look
        r.handler.objection = objection("a GPU of another's") if objects else None
        if not objects:
            assert await r.runtime.create(pod(), container()) is not None
        else:
            with pytest.raises(RequestFailed, match=r"rejected .*: a GPU of another's"):
                await r.runtime.create(pod(), container())
        assert looked


async def test_a_refusal_reaches_the_user_unchanged() -> None:
    async with session() as r:
        r.handler.hooks["create"] = raiser(objection("no GPU-7 on this node: \udcff é"))
        with pytest.raises(RequestFailed) as failed:
            await r.runtime.create(pod(), container())
        made, of = container(), pod()
        assert (failed.value.code, failed.value.message) == (
            2,
            f'gpuslice refuses container "{made.name}" of pod {of.namespace}/{of.name}: the agent'
            " cannot create the container's files: no GPU-7 on this node: \\udcff \\xe9;"
            " run the doctor on the node (python -m nri_plugin doctor)",
        )
        del r.handler.hooks["create"]
        r.handler.hooks["start"] = raiser(objection("the image brings a preload of its own"))
        with pytest.raises(RequestFailed, match=r"2: .*: the image brings a preload of its own"):
            await r.runtime.notify("StartContainer", pod(), container())
        r.handler.objection = objection("another plugin took our mount away")
        with pytest.raises(RequestFailed, match=r"rejected .*: another plugin took our mount away"):
            await r.runtime.create(pod(), container())
        assert r.runtime.dropped is None


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
        with pytest.raises(RequestFailed, match=type(error).__name__):
            await r.runtime.create(pod(), container())
        assert r.runtime.dropped is None
        r.handler.hooks.clear()
        r.handler.objection = None
        assert await r.runtime.create(pod(), container()) is not None
    assert "outcome=error" in caplog.text


@pytest.mark.parametrize("hook", [forever, deaf])
async def test_a_late_handler_is_answered_for_before_the_runtime_gives_up(
    hook: Callable[[], Awaitable[None]], caplog: pytest.LogCaptureFixture
) -> None:
    async with session() as r:
        r.handler.hooks["create"] = hook
        r.runtime.request_timeout_s = 1
        with pytest.raises(RequestFailed, match=r"did not decide .* within 0\.75 s"):
            await r.runtime.create(pod(), container())
        assert r.runtime.dropped is None
        del r.handler.hooks["create"]
        r.runtime.request_timeout_s = 60
        assert await r.runtime.create(pod(), container()) is not None
    assert "outcome=late" in caplog.text


async def test_a_handler_that_answers_at_once_has_the_same_replies(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with session() as r:
        r.handler.at_once = True
        assert await r.runtime.create(pod(), container()) == nri.CreateContainerResponse()
        r.handler.adjustment = nri.ContainerAdjustment(env=[nri.KeyValue(key="A", value="1")])
        reply = await r.runtime.create(pod(), container())
        assert reply is not None and reply.adjust == r.handler.adjustment
        r.handler.objection = objection("no GPU-7 on this node")
        with pytest.raises(RequestFailed, match=r"2: .*: no GPU-7 on this node"):
            await r.runtime.create(pod(), container())
        r.handler.objection = ValueError("a bug")
        with pytest.raises(RequestFailed, match="failed at CreateContainer: ValueError: a bug"):
            await r.runtime.create(pod(), container())
        assert r.runtime.dropped is None
    assert [word for word in caplog.text.split() if word.startswith("outcome=")] == [
        "outcome=refused",
        "outcome=error",
    ]
