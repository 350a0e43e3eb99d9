"""The verification of containers that runc has really started. Some inspections never end."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from nri_plugin.command_line import from_arguments
from nri_plugin.host import bundle as bundles
from nri_plugin.host import verifier
from nri_plugin.host.rootfs import Identity, Inspector, Proof
from nri_plugin.host.verifier import Started, Verifier
from nri_plugin.metrics import Metrics
from nri_plugin.policy.model import Container, Pod
from nri_plugin.policy.notices import Notices
from nri_plugin.policy.refusals import Refused, is_shortage
from tests.descriptors import no_descriptors
from tests.nri_plugin.host.test_rootfs import Bundle, bundle
from tests.nri_plugin.host_files import put

__all__ = ["bundle"]

pytestmark = pytest.mark.node


def prove(bundle: Bundle, waits_in: Identity | None = None) -> Proof:
    return bundle.inspector.prove(bundle.id, bundle.plan, waits_in)


def put_over(bundle: Bundle, place: str) -> None:
    """Mount /dev/null on `place`, as a runtime's hook might do after the check at the start."""
    enter = ["nsenter", f"--target={(bundle.path / 'init.pid').read_text()}", "--mount"]
    subprocess.run([*enter, "/bin/busybox", "mount", "-o", "bind", "/dev/null", place], check=True)


def test_what_was_put_in_place_is_what_the_program_meets(bundle: Bundle) -> None:
    bundle.create()
    waits_in = bundle.examine().waits_in
    assert prove(bundle, waits_in) is Proof.WAITS
    bundle.start()
    while prove(bundle, waits_in) is Proof.WAITS:
        pass
    assert prove(bundle, waits_in) is prove(bundle) is Proof.HOLDS
    bundle.end()
    assert prove(bundle, waits_in) is Proof.ENDED
    (bundle.path / "init.pid").unlink()
    assert prove(bundle) is Proof.ENDED


@pytest.mark.parametrize(
    "place", ["/.gpuslice/libvgpu.so", "/.gpuslice/grant", "/etc/ld.so.preload"]
)
def test_a_file_that_was_put_over_ours_since(bundle: Bundle, place: str) -> None:
    bundle.create()
    bundle.examine()
    put_over(bundle, place)
    with pytest.raises(Refused, match=f"{place} is not the file that the agent mounted"):
        prove(bundle)


def test_without_descriptors_a_limit_is_not_judged(bundle: Bundle) -> None:
    """Each inspection reports that the agent has no free descriptors, and no fault of the limit."""
    bundle.create()
    for look in (
        *(bundle.examine, partial(prove, bundle), partial(bundle.files.plan, bundle.id, "main")),
        partial(bundle.files.grants, [bundle.id]),
    ):
        with no_descriptors(), pytest.raises(Refused, match="no file descriptors") as raised:
            look()
        assert is_shortage(raised.value)
    assert prove(bundle) is Proof.HOLDS


def test_a_capability_not_seen_before_the_start(bundle: Bundle) -> None:
    bundle.capabilities = {"bounding": ["CAP_DAC_READ_SEARCH"]}
    bundle.create()
    bundle.start()
    with pytest.raises(Refused, match=r"value DAC_READ_SEARCH: .* the container open"):
        prove(bundle)
    (bundle.path / "config.json").write_text("{")
    with pytest.raises(OSError, match=r"config\.json is not as the runtime reads it"):
        prove(bundle)


def test_an_end_during_the_check(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle.create()
    whole = Inspector._check_volumes

    def end_first(*arguments: object) -> None:
        bundle.end()
        whole(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Inspector, "_check_volumes", end_first)
    assert prove(bundle) is Proof.ENDED


def verifier_at(state: Path, deadline_s: float, metrics: Metrics) -> Verifier:
    arguments = ["--library", "/l.so", "--containerd-state", str(state)]
    settings = replace(from_arguments(arguments, {}), work_deadline_s=deadline_s)
    return Verifier(settings, metrics, Notices(), Path)


class Desk:
    def __init__(self, bundle: Bundle, caplog: pytest.LogCaptureFixture) -> None:
        self.metrics, self.bundle, self._caplog = Metrics(), bundle, caplog
        bundle.create()
        self.one = Started(Pod("uid", "team", "train"), "main", bundle.id, bundle.plan)
        self.whose = f"namespace=team pod=train uid=uid container=main container_id={bundle.id}"

    def perform(
        self,
        one: Started,
        deadline_s: float = 60,
        do: Callable[[Verifier], object] = lambda _: None,
    ) -> list[str]:
        """Verify the container, and return the log. do: a call after the verification has begun."""

        async def work() -> None:
            desk = verifier_at(self.bundle.state, deadline_s, self.metrics)
            desk._inspector = self.bundle.inspector
            desk.begin(one)
            do(desk)
            await desk.settled()
            await desk.settled()

        self._caplog.clear()
        with self._caplog.at_level(logging.INFO):
            asyncio.run(work())
        return [record.getMessage() for record in self._caplog.records]

    @property
    def counted(self) -> float | None:
        return self.metrics.registry.get_sample_value("gpuslice_limit_not_in_place_total")


@pytest.fixture
def desk(bundle: Bundle, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setattr(verifier, "_PAUSES_S", (0.0, 0.0))
    return Desk(bundle, caplog)


def test_the_result_of_a_check_is_logged_and_failures_are_counted(desk: Desk) -> None:
    waits_in = desk.bundle.examine().waits_in
    assert desk.perform(replace(desk.one, waits_in=waits_in)) == [], "it never starts"
    with ExitStack() as stack:
        (said,) = desk.perform(desk.one, do=lambda _: stack.enter_context(no_descriptors()))
    assert said.startswith(f"limit not checked {desk.whose}") and "Too many open files" in said
    (said,) = desk.perform(desk.one)
    assert said.startswith(f"limit in place {desk.whose}")
    assert desk.counted == 0
    put_over(desk.bundle, "/etc/ld.so.preload")
    (said,) = desk.perform(desk.one)
    assert said.startswith(f"limit not in place {desk.whose}")
    assert 'problem="inside the container /etc/ld.so.preload is not the file' in said
    assert desk.counted == 1


def test_a_hanging_check_reports_no_container(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    fifo, whole = desk.bundle.state / "never", bundles.init
    os.mkfifo(fifo)
    hangs = bundles.directory(desk.bundle.state, "hangs")
    monkeypatch.setattr(bundles, "init", lambda p: fifo.read_text() if p == hangs else whole(p))
    stuck = replace(desk.one, id="hangs", pod=Pod("other", "team", "stuck"))
    try:
        said = desk.perform(stuck, deadline_s=3.0, do=lambda checks: checks.begin(desk.one))
    finally:
        fifo.open("w").close()
    assert [line.split(" namespace=")[0] for line in said] == [
        "limit not checked: the inspection hangs",
        "limit in place",
    ]
    assert desk.counted == 0


PODS, RETRIES = 40, 3
STRONG = {
    "process": {"cwd": "/", "capabilities": {"effective": ["CAP_SYS_ADMIN"]}},
    "linux": {"namespaces": []},
}


async def test_pods_whose_inspections_hang_leave_slots_to_the_others(tmp_path: Path) -> None:
    """The inspected file has no end, as on an NFS server that hangs. The kubelet retries."""
    inspects, hung = verifier_at(tmp_path, 0.01, Metrics()), []
    for number in range(PODS - 1):
        directory = bundles.directory(tmp_path, f"hung-{number}")
        directory.mkdir(parents=True)
        hung.append(directory / "config.json")
        os.mkfifo(hung[-1])
        pod = Pod(f"uid-{number}", "team", f"pod-{number}")
        for _ in range(RETRIES):
            with pytest.raises(TimeoutError):
                await inspects.strong_beside(pod, Container(f"hung-{number}", "main"))
    inspects._settings = replace(inspects._settings, work_deadline_s=60)
    directory = bundles.directory(tmp_path, "other")
    put(directory / "config.json", json.dumps(STRONG))
    put(directory / "init.pid", str(os.getpid()))
    pod = Pod("uid-other", "team", "other")
    strong = await inspects.strong_beside(pod, Container("other", "main"))
    for fifo in hung:
        os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
    assert strong == "SYS_ADMIN"
