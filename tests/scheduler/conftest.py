"""Tests that are coroutines run on an event loop of their own."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A fixture that is an asynchronous context manager is entered around the test, which gets what
    that gives. The loop is made by the fixture loop_factory, where the test's module has one."""
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
