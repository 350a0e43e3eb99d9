"""The arbiter over real files: which it serves, and when it sees their changes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuslice.contract import grant_file, lease_file, names, region_file
from shim import region
from shim.arbiter.files import directories
from shim.arbiter.process import Arbiter
from tests.descriptors import no_descriptors
from tests.shim.conftest import set_share
from tests.support import ROOT

MS = 1_000_000
UUIDS = ("GPU-a", "GPU-b")


def make(parent: Path, name: str, *percents: int, forced: bool = False) -> Path:
    directory = parent / name
    directory.mkdir()
    gpus = [
        grant_file.Gpu(uuid, 1 << 30, percent, minor, core_forced=forced)
        for minor, (uuid, percent) in enumerate(zip(UUIDS, percents, strict=False))
    ]
    region.create(directory, gpus)
    return directory


def lease(directory: Path, gpu: int = 0) -> lease_file.Lease | None:
    found = lease_file.decode((directory / names.FILE_LEASE).read_bytes(), gpu)
    return found and found[1]


def share_ppm(directory: Path, gpu: int = 0) -> int:
    found = lease(directory, gpu)
    return found.share_ppm if found else 0


def launches_are_checked(directory: Path) -> bool:
    data = (directory / names.FILE_LEASE).read_bytes()
    return bool(lease_file.HEADER.unpack(data)["launches_checked"])


def write(directory: Path, field: str, value: int) -> None:
    """Write as a tenant may."""
    offset = region_file.Geometry(1).compute_offset(0) + region_file.COMPUTE.offset(field)
    with (directory / names.FILE_REGION).open("r+b") as file:
        file.seek(offset)
        file.write(value.to_bytes(8, "little"))


def launch(directory: Path, now_ns: int) -> None:
    """Count a launch as the library does."""
    write(directory, "launched_ns", now_ns)


class Steps:
    """The arbiter in virtual time: as often as it wants to."""

    def __init__(self, parent: Path, report: Callable[[str], None] = lambda _: None) -> None:
        self.arbiter = Arbiter(parent, report=report)
        self.now_ns = 10**12

    def run(self, milliseconds: int) -> None:
        end_ns = self.now_ns + milliseconds * MS
        while self.now_ns <= end_ns:
            self.now_ns = max(self.arbiter.step(self.now_ns), self.now_ns + 1)
        self.now_ns = end_ns


def pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def foreign(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(path, 12345, 12345, follow_symlinks=False)


def link(path: Path) -> None:
    path.rename(path.with_suffix(".real"))
    path.symlink_to(path.with_suffix(".real").name)


@pytest.mark.parametrize("name", [names.FILE_GRANT, names.FILE_REGION, names.FILE_LEASE, ""])
@pytest.mark.parametrize("planted", [pipe, foreign, link], ids=lambda each: each.__name__)
def test_what_another_user_planted_is_not_served(
    tmp_path: Path, name: str, planted: object
) -> None:
    """It keeps the arbiter from no other container."""
    assert callable(planted)
    other = make(tmp_path, "other", 30, forced=True)
    if planted is pipe and not name:
        pipe(tmp_path / "bad")
    else:
        planted(make(tmp_path, "bad", 50, forced=True) / name)
    if planted is link and not name:
        (tmp_path / "bad.real").rename(tmp_path.parent / f"{tmp_path.name}.real")
    steps = Steps(tmp_path)
    steps.run(300)
    assert share_ppm(other) == 300_000
    assert [each.name for each in steps.arbiter._containers] == ["other"]


@pytest.mark.parametrize("at_ms", [0, 1, 250])
def test_a_container_made_again_under_one_name_is_served(tmp_path: Path, at_ms: int) -> None:
    steps = Steps(tmp_path)
    directory = make(tmp_path, "a", 30, forced=True)
    steps.run(at_ms)
    shutil.rmtree(directory)
    make(tmp_path, "a", 60, forced=True)
    steps.run(200)
    assert share_ppm(directory) == 600_000


@pytest.mark.parametrize(("works", "seen_ms"), [(True, 50), (False, 180)])
def test_a_changed_share_is_seen_soon(tmp_path: Path, works: bool, seen_ms: int) -> None:
    """Launches are no longer checked once a cap ends, and are checked again once one begins."""
    directory = make(tmp_path, "a", 30, forced=True)
    steps = Steps(tmp_path)
    steps.run(150)
    assert launches_are_checked(directory)
    for percent in (60, 0, 10):
        if works:
            launch(directory, steps.now_ns)
            steps.run(50)
        set_share(directory, percent)
        steps.run(seen_ms)
        assert launches_are_checked(directory) is (percent != 0)
        steps.run(700)  # the lease's next beat
        assert share_ppm(directory) == (percent * 10_000 or 1_000_000)


def test_each_gpu_of_a_container_has_its_own_share(tmp_path: Path) -> None:
    """150 percent on two GPUs, beside a neighbour of each; 0 is the rest."""
    both = make(tmp_path, "both", 80, 70)
    small = make(tmp_path, "small", 20)
    rest = make(tmp_path, "rest", 0, 0)
    Steps(tmp_path).run(300)
    assert (share_ppm(both, 0), share_ppm(both, 1)) == (761_904, 700_000)
    assert share_ppm(small) == 190_476
    assert (share_ppm(rest, 0), share_ppm(rest, 1)) == (47_619, 300_000)
    assert launches_are_checked(rest)


def test_containers_beyond_the_limit_of_open_files_are_reported(tmp_path: Path) -> None:
    """The arbiter opens them again once in a second, not in each cycle."""
    first = make(tmp_path, "a", 20, forced=True)
    said: list[str] = []
    steps = Steps(tmp_path, said.append)
    steps.run(300)
    others = [make(tmp_path, f"b{number}", 20, forced=True) for number in range(3)]
    with no_descriptors():
        steps.run(2000)
    (text,) = said
    assert text.startswith("serves 1 containers, and no more: [Errno 24] Too many open files")
    assert share_ppm(first) == 200_000
    steps.run(1500)
    assert all(share_ppm(each) == 200_000 for each in others)
    assert said[1:] == ["serves 4 containers: all"]


def test_a_container_that_overwrote_its_header_is_served(tmp_path: Path) -> None:
    directory = make(tmp_path, "a", 30)
    with (directory / names.FILE_REGION).open("r+b") as file:
        file.write(b"\xff" * region_file.HEADER.size)
    steps = Steps(tmp_path)
    steps.run(300)
    assert share_ppm(directory) > 0


def test_a_work_counter_that_jumps_and_falls_is_no_idle_time(tmp_path: Path) -> None:
    """A tenant writes it, or its region is made again: nothing but the turns themselves counts."""
    one, other = make(tmp_path, "a", 50), make(tmp_path, "b", 50)
    steps = Steps(tmp_path)
    begun_ns = steps.now_ns
    for busy_ns in (2**64 - 1, 0, 2**63, 0):
        for _ in range(30):
            write(one, "busy_ns", busy_ns)
            launch(one, steps.now_ns)
            launch(other, steps.now_ns)
            steps.run(10)
    found = lease(one)
    assert found and 0 < found.idle_ns <= (steps.now_ns - begun_ns) * 0.6


def test_of_two_arbiters_one_waits_and_takes_over(tmp_path: Path) -> None:
    """Their heartbeats report which of them serves."""
    command = [sys.executable, "-m", "shim", "arbiter", "--heartbeat", str(tmp_path)]

    def started() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def beat_of(arbiter: subprocess.Popen[bytes]) -> bytes:
        assert arbiter.stdout is not None
        return os.read(arbiter.stdout.fileno(), 1)

    with started() as first:
        assert beat_of(first) == names.HEARTBEAT_WAITING  # until it has the lock
        assert beat_of(first) == names.HEARTBEAT_SERVING
        with started() as second:
            assert {beat_of(second) for _ in range(3)} == {names.HEARTBEAT_WAITING}
            first.send_signal(signal.SIGKILL)
            assert names.HEARTBEAT_SERVING in [beat_of(second) for _ in range(3)]


def test_the_agents_own_directories_are_no_containers(tmp_path: Path) -> None:
    """One that cannot be opened as a container would be listed again in each cycle."""
    for name in (".store", ".cdi", "container"):
        (tmp_path / name).mkdir()
    assert [path.name for path in directories(tmp_path, "")] == ["container"]
