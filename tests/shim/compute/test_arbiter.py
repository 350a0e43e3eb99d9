"""The arbiter with real files: which containers it serves, and how soon it notices changes."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuslice.contract import grant_file, lease_file, names, region_file
from gpuslice.contract.grant_file import Policy
from shim import region
from shim.arbiter.files import directories
from shim.arbiter.process import Arbiter
from tests.descriptors import no_descriptors
from tests.shim.conftest import change_grant
from tests.shim.region.core import patch
from tests.support import ROOT

MS = 1_000_000
UUIDS = ("GPU-a", "GPU-b")


def make(directory: Path, *percents: int, forced: bool = True) -> Path:
    directory.mkdir()
    gpus = [
        grant_file.Gpu(
            uuid, 1 << 30, percent, minor, policy=Policy.CAPPED if forced else Policy.FAIR
        )
        for minor, (uuid, percent) in enumerate(zip(UUIDS, percents, strict=False))
    ]
    region.create(directory, gpus)
    return directory


def lease(directory: Path, gpu: int = 0) -> lease_file.Lease:
    """Return the GPU's lease in the file, or a lease without a share if the file has none."""
    found = lease_file.decode((directory / names.FILE_LEASE).read_bytes(), gpu)
    return found[1] if found else lease_file.Lease(0, share_ppm=0)


def launches_are_checked(directory: Path) -> bool:
    data = (directory / names.FILE_LEASE).read_bytes()
    return bool(lease_file.HEADER.unpack(data)["launches_checked"])


def write(directory: Path, **fields: int) -> None:
    """Write fields of the first GPU's `region_file.COMPUTE`, as the library or a tenant may."""
    record = region_file.Geometry(1).compute_offset(0)
    for field, value in fields.items():
        offset = record + region_file.COMPUTE.offset(field)
        patch(directory / names.FILE_REGION, offset, value.to_bytes(8, "little"))


class Steps:
    """The arbiter in virtual time. `run` makes each step at the time that the arbiter requests."""

    def __init__(self, parent: Path, report: Callable[[str], None] = lambda _: None) -> None:
        self.arbiter = Arbiter(parent, report=report)
        self.now_ns = 10**12

    def run(self, milliseconds: int) -> None:
        end_ns = self.now_ns + milliseconds * MS
        while self.now_ns <= end_ns:
            self.now_ns = max(self.arbiter.step(self.now_ns), self.now_ns + 1)
        self.now_ns = end_ns


def pipe(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def foreign(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(path, 12345, 12345, follow_symlinks=False)


def link(path: Path) -> None:
    path.rename(path.with_name(f".{path.name}"))
    path.symlink_to(f".{path.name}")


@pytest.mark.parametrize("name", [names.FILE_GRANT, names.FILE_REGION, names.FILE_LEASE, ""])
@pytest.mark.parametrize("planted", [pipe, foreign, link], ids=lambda each: each.__name__)
def test_what_another_user_planted_is_not_served(
    tmp_path: Path, name: str, planted: Callable[[Path], None]
) -> None:
    """A file that another user planted does not keep the arbiter from serving other containers."""
    other = make(tmp_path / "other", 30)
    planted(make(tmp_path / "bad", 50) / name)
    steps = Steps(tmp_path)
    steps.run(300)
    assert lease(other).share_ppm == 300_000
    assert [each.name for each in steps.arbiter._containers] == ["other"]


@pytest.mark.parametrize("at_ms", [0, 1, 250])
def test_a_container_made_again_under_one_name_is_served(tmp_path: Path, at_ms: int) -> None:
    steps = Steps(tmp_path)
    directory = make(tmp_path / "a", 30)
    steps.run(at_ms)
    shutil.rmtree(directory)
    make(directory, 60)
    steps.run(200)
    assert lease(directory).share_ppm == 600_000


@pytest.mark.parametrize(("works", "seen_ms"), [(True, 50), (False, 180)])
def test_a_changed_share_is_seen_soon(tmp_path: Path, works: bool, seen_ms: int) -> None:
    """Launches are unchecked once the container's cap is removed, and checked once it is back."""
    directory = make(tmp_path / "a", 30)
    steps = Steps(tmp_path)
    steps.run(150)
    assert launches_are_checked(directory)
    for percent in (60, 0, 10):
        if works:
            write(directory, launched_ns=steps.now_ns)
            steps.run(50)
        change_grant(directory, core_percent=percent)
        steps.run(seen_ms)
        assert launches_are_checked(directory) is (percent != 0)
        steps.run(700)  # until the arbiter renews the lease
        assert lease(directory).share_ppm == (percent * 10_000 or 1_000_000)


def test_each_gpu_of_a_container_has_its_own_share(tmp_path: Path) -> None:
    """Shares are scaled to 100 percent of each GPU. Containers with a share of 0 get the rest."""
    both = make(tmp_path / "both", 80, 70, forced=False)
    small = make(tmp_path / "small", 20, forced=False)
    rest = make(tmp_path / "rest", 0, 0, forced=False)
    Steps(tmp_path).run(300)
    assert [lease(both, gpu).share_ppm for gpu in (0, 1)] == [761_904, 700_000]
    assert lease(small).share_ppm == 190_476
    assert [lease(rest, gpu).share_ppm for gpu in (0, 1)] == [47_619, 300_000]
    assert launches_are_checked(rest)


def test_containers_beyond_the_limit_of_open_files_are_reported(tmp_path: Path) -> None:
    """The arbiter tries to open the files again once a second, and not in each cycle."""
    first = make(tmp_path / "a", 20)
    said: list[str] = []
    steps = Steps(tmp_path, said.append)
    steps.run(300)
    others = [make(tmp_path / f"b{number}", 20) for number in range(3)]
    with no_descriptors():
        steps.run(2000)
    (text,) = said
    assert text.startswith("serves 1 containers, and no more: [Errno 24] Too many open files")
    assert lease(first).share_ppm == 200_000
    steps.run(1500)
    assert [lease(each).share_ppm for each in others] == [200_000] * 3
    assert said[1:] == ["serves 4 containers: all"]


def test_a_container_that_overwrote_its_header_is_served(tmp_path: Path) -> None:
    directory = make(tmp_path / "a", 30, forced=False)
    patch(directory / names.FILE_REGION, 0, b"\xff" * region_file.HEADER.size)
    Steps(tmp_path).run(300)
    assert lease(directory).share_ppm > 0


@pytest.mark.parametrize("ahead_s", [-100, 2])
def test_a_container_in_a_time_namespace_gets_leases_of_its_clock(
    tmp_path: Path, ahead_s: int
) -> None:
    directory = make(tmp_path / "a", 30)
    steps = Steps(tmp_path)
    for _ in range(10):
        write(directory, launched_ns=steps.now_ns + ahead_s * 1000 * MS)
        steps.run(60)
    ahead_ns = lease(directory).written_ns - steps.now_ns
    assert abs(ahead_ns - ahead_s * 1000 * MS) < 200 * MS


def of_version_1(directory: Path) -> None:
    """Make the lease file that of an older library."""
    lease = bytearray((directory / names.FILE_LEASE).read_bytes())
    struct.pack_into("<I", lease, lease_file.HEADER.offset("version"), 1)
    (directory / names.FILE_LEASE).write_bytes(lease)


def test_a_container_of_an_older_library_is_served(tmp_path: Path) -> None:
    """Its records have their old layout and no lane."""
    new, old = (make(tmp_path / name, 50, forced=False) for name in ("new", "old"))
    of_version_1(old)
    steps = Steps(tmp_path)
    for each in (new, old):
        write(each, launched_ns=steps.now_ns, spent_ns=7)
    steps.run(30)
    lanes = {
        at.name: (held.lanes, held.activity(0, steps.now_ns).spent_ns)
        for at, held in steps.arbiter._containers.items()
    }
    assert lanes == {"new": (True, 7), "old": (False, 7)}
    data = (old / names.FILE_LEASE).read_bytes()
    sequence = lease_file.sequence(data, 0, 1)
    record = lease_file.RECORD_1.unpack_from(data, lease_file.record_offset(0, sequence, 1))
    assert record[0] == sequence > 0
    assert record[4] == 500_000


def test_of_two_arbiters_one_waits_and_takes_over(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "shim", "arbiter", "--heartbeat", str(tmp_path)]

    def started() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def beats_of(arbiter: subprocess.Popen[bytes], count: int) -> list[bytes]:
        assert arbiter.stdout is not None
        return [os.read(arbiter.stdout.fileno(), 1) for _ in range(count)]

    with started() as first:
        assert beats_of(first, 2) == [names.HEARTBEAT_WAITING, names.HEARTBEAT_SERVING]
        with started() as second:
            assert beats_of(second, 3) == [names.HEARTBEAT_WAITING] * 3
            first.kill()
            assert names.HEARTBEAT_SERVING in beats_of(second, 3)


def test_the_agents_own_directories_are_no_containers(tmp_path: Path) -> None:
    """The agent's own directories lie beside the containers'. The arbiter must not open them."""
    for name in (".store", "container"):
        (tmp_path / name).mkdir()
    assert [path.name for path in directories(tmp_path, "")] == ["container"]
