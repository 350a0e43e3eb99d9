"""What `gpuslice host` does for each grant: a table of single states."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuslice.docker.grants import device_name
from gpuslice.docker.reconciler import LOST, UNREADABLE
from gpuslice.gpu.bookings import Booking, Part, started_ticks
from tests.bookings.making import PID
from tests.docker.faking import (
    FAILED,
    GPU,
    RUN_DIR,
    RUNNING,
    UNRESOLVABLE,
    container,
    grant,
    hosted,
)

UNMOUNTABLE = f"error mounting {RUN_DIR}/web/preload: no such file or directory"
EXITED, CREATED = container("exited"), container("created")
COMPLETE = {"grant": True, "making": False, "booked": True, "files": True, "spec": True}
AFTER_REBOOT = {"booked": False, "files": False, "spec": False}

TABLE: dict[str, tuple[dict[str, Any], Sequence[str]]] = {
    "a running container": ({"containers": [RUNNING]}, []),
    "a container that a user stopped": ({"containers": [EXITED]}, []),
    "its run still makes it": ({"making": True}, []),
    "its run was killed before the creation": ({}, ["free"]),
    "its run was killed before the start": ({"containers": [CREATED]}, ["remove"]),
    "a copy by hand was never started": ({"containers": [replace(CREATED, name="copy")]}, []),
    "its text is unreadable, and it never started": (
        {"grant": False, "containers": [CREATED]},
        [UNREADABLE],
    ),
    "one of two that share it was never started": (
        {"containers": [CREATED, replace(RUNNING, id="other")]},
        [],
    ),
    "its container was removed while the text is unreadable": ({"grant": False}, ["free"]),
    "its text is unreadable": ({"grant": False, "containers": [RUNNING]}, [UNREADABLE]),
    "Docker is away": ({"containers": None}, []),
    "after a reboot, before Docker": ({"containers": None, **AFTER_REBOOT}, ["make", "booked"]),
    "an unreadable text, before Docker": ({"containers": None, "grant": False}, []),
    "after a reboot, Docker was first": (
        {"containers": [FAILED], **AFTER_REBOOT},
        ["make", "start", "booked"],
    ),
    "Docker was first, and our files were made since": ({"containers": [FAILED]}, ["start"]),
    "Docker could not mount our files": (
        {"containers": [container("exited", UNMOUNTABLE)], "files": False},
        ["make", "start"],
    ),
    "it has no restart policy": (
        {"containers": [container("exited", UNRESOLVABLE, restarts=False)], "spec": False},
        ["make"],
    ),
    "it failed for a reason of its own": (
        {"containers": [container("exited", 'exec: "nope": not found')]},
        [],
    ),
    "its error names another container's grant": (
        {"containers": [container("exited", f"unresolvable CDI devices {device_name('x')}")]},
        [],
    ),
    "Docker starts it again itself": ({"containers": [container("restarting", UNMOUNTABLE)]}, []),
    "its files are gone while it runs": ({"containers": [RUNNING], "files": False}, [LOST]),
    "all is gone while it runs": (
        {"containers": [container("paused")], **AFTER_REBOOT},
        ["booked", LOST],
    ),
    "its spec is gone while it runs": ({"containers": [RUNNING], "spec": False}, ["make"]),
}


@pytest.mark.parametrize("state", TABLE)
def test_the_steps_of_a_state(tmp_path: Path, state: str) -> None:
    """The words are the steps in their order, "booked" for a new booking, and what `ps` shows."""
    given, expected = TABLE[state]
    known = {**COMPLETE, "containers": [], **given}
    files, docker, bookings, host = hosted(tmp_path)
    docker.up = known["containers"] is not None
    for each in known["containers"] or ():
        text = each.grant if known["grant"] else "?"
        docker.known[each.id] = replace(each, grant=text)
    files.texts["web"] = grant() if known["grant"] else None
    files.files |= {"web"} if known["files"] else set()
    files.specs |= {"web"} if known["spec"] else set()
    pid, ticks = (os.getpid(), started_ticks(os.getpid()) or 0) if known["making"] else (PID, 1)
    booking = Booking("web", "web", [Part(GPU.uuid, 40, 30)], pid, ticks, "container", "")
    with bookings.locked():
        if known["booked"]:
            bookings.book(booking, {GPU.uuid: GPU.most_bytes}, lambda: None)
    host.reconcile()
    with bookings.locked():
        booked = bool(bookings.live(lambda: None))
    done = [*files.steps, *["booked"] * (booked and not known["booked"]), files.notes.get("web")]
    assert [each for each in done if each] == [*expected]
