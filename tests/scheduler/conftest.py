"""Tests that are coroutines run on an event loop of their own."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """The loop is made by the fixture loop_factory, where the test's module has one."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in wanted}
    factory: Callable[[], asyncio.AbstractEventLoop] | None
    factory = pyfuncitem.funcargs.get("loop_factory")  # type: ignore[assignment]
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(pyfuncitem.obj(**arguments))
    return True
