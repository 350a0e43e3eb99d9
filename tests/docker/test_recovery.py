"""What `gpuslice host` does for each grant: a table of single states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpuslice.docker import recovery
from gpuslice.docker.grants import Grant, device_name, encode
from gpuslice.docker.recovery import LOST, Action, Container, Facts, Step
from nri_plugin.policy.model import Gpu, Share

RUN_DIR = "/run/gpuslice"
GPU = Gpu("GPU-a", 0, 100)
UNRESOLVABLE = f"failed to inject CDI devices: unresolvable CDI devices {device_name('web')}"
UNMOUNTABLE = f"error mounting {RUN_DIR}/web/preload: no such file or directory"


def grant(key: str = "web", memory_bytes: int = 40, core: int = 30) -> Grant:
    return Grant(key, key, (Share(GPU.uuid, 0, memory_bytes, core),))


def container(status: str, error: str = "", restarts: bool = True) -> Container:
    return Container("id", "web", "web", encode(grant()), status, restarts, error)


COMPLETE = Facts("web", grant(), changing=False, booked=True, files=True, spec=True, containers=[])
RUNNING, EXITED, CREATED = container("running"), container("exited"), container("created")
FAILED = container("exited", UNRESOLVABLE)
ALL = [Action(Step.BOOK), Action(Step.MAKE)]
START = Action(Step.START, "id")

TABLE: dict[str, tuple[dict[str, Any], Sequence[Action]]] = {
    "a running container": ({"containers": [RUNNING]}, []),
    "a container that a user stopped": ({"containers": [EXITED]}, []),
    "its run still makes it": ({"changing": True}, []),
    "its run was killed before the creation": ({}, [Action(Step.FREE)]),
    "its run was killed before the start": ({"containers": [CREATED]}, [Action(Step.REMOVE, "id")]),
    "one of two that share it was never started": ({"containers": [CREATED, RUNNING]}, []),
    "its container was removed while the text is unreadable": (
        {"grant": None},
        [Action(Step.FREE)],
    ),
    "its text is unreadable": (
        {"grant": None, "containers": [RUNNING]},
        [Action(Step.LEAVE, why="the text of its grant is unreadable")],
    ),
    "Docker is away": ({"containers": None}, []),
    "after a reboot, before Docker": (
        {"containers": None, "booked": False, "files": False, "spec": False},
        ALL,
    ),
    "an unreadable text, before Docker": ({"containers": None, "grant": None}, []),
    "after a reboot, Docker was first": (
        {"containers": [FAILED], "booked": False, "files": False, "spec": False},
        [*ALL, START],
    ),
    "Docker was first, and our files were made since": ({"containers": [FAILED]}, [START]),
    "Docker could not mount our files": (
        {"containers": [container("exited", UNMOUNTABLE)], "files": False},
        [Action(Step.MAKE), START],
    ),
    "it has no restart policy": (
        {"containers": [container("exited", UNRESOLVABLE, restarts=False)], "spec": False},
        [Action(Step.MAKE)],
    ),
    "it failed for a reason of its own": (
        {"containers": [container("exited", 'exec: "nope": not found')]},
        [],
    ),
    "Docker starts it again itself": ({"containers": [container("restarting", UNMOUNTABLE)]}, []),
    "its files are gone while it runs": (
        {"containers": [RUNNING], "files": False},
        [Action(Step.LEAVE, why=LOST)],
    ),
    "all is gone while it runs": (
        {"containers": [container("paused")], "booked": False, "files": False, "spec": False},
        [Action(Step.BOOK), Action(Step.LEAVE, why=LOST)],
    ),
    "its spec is gone while it runs": (
        {"containers": [RUNNING], "spec": False},
        [Action(Step.MAKE)],
    ),
}


@pytest.mark.parametrize("state", TABLE)
def test_the_steps_of_a_state(state: str) -> None:
    known, expected = TABLE[state]
    assert [*recovery.actions(replace(COMPLETE, **known), RUN_DIR)] == [*expected]
