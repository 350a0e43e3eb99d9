"""Fixtures of the binder's tests: short timeouts, and a `Scene`."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import pytest

from tests.scheduler.binder.scene import Scene, scene_of


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set short timeouts, so that every step is tried once and hanging calls end soon."""
    for name, limit_s in (("WORK_S", 0.0), ("POST_S", 1.0), ("GET_S", 1.0)):
        monkeypatch.setattr(f"scheduler.binder.{name}", limit_s)


@pytest.fixture
def patient(_soon: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set timeouts that allow retries for a minute."""
    monkeypatch.setattr("scheduler.binder.WORK_S", 60.0)


@pytest.fixture
def scene() -> AbstractAsyncContextManager[Scene]:
    return scene_of()
