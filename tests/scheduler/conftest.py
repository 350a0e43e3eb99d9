"""Runs each coroutine test on its own event loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Enters a fixture that is an asynchronous context manager, and passes its value to the test.
    The fixture loop_factory, if the module has one, creates the loop."""
    test, given = pyfuncitem.obj, pyfuncitem.funcargs
    if not inspect.iscoroutinefunction(test):
        return None

    async def run() -> None:
        arguments: dict[str, Any] = {}
        async with AsyncExitStack() as stack:
            for name in inspect.signature(test).parameters:
                value = given[name]
                if isinstance(value, AbstractAsyncContextManager):
                    value = await stack.enter_async_context(value)
                arguments[name] = value
            await test(**arguments)

    factory: Callable[[], asyncio.AbstractEventLoop] | None
    factory = given.get("loop_factory")  # type: ignore[assignment]
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(run())
    return True
