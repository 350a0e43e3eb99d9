"""Short timeouts, and a binder."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import pytest

from tests.scheduler.binder.scene import Scene, scene_of


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short timeouts, so that everything is tried once and hanging calls end soon."""
    monkeypatch.setattr("scheduler.binder.WORK_S", 0.0)
    monkeypatch.setattr("scheduler.binder.POST_S", 1.0)
    monkeypatch.setattr("scheduler.binder.GET_S", 1.0)


@pytest.fixture
def patient(_soon: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries for a minute."""
    monkeypatch.setattr("scheduler.binder.WORK_S", 60.0)


@pytest.fixture
def scene() -> AbstractAsyncContextManager[Scene]:
    return scene_of()
