"""The run directory on a real kernel: mounts, modes, kills, and files of other releases."""

from __future__ import annotations

import binascii
import os
import stat
import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gpuslice.contract import grant_file, lease_file, names, region_file
from gpuslice.contract.grant_file import Policy
from gpuslice.gpu.account import Account
from nri_plugin.host import preload_list, tmpfs
from nri_plugin.host.files import RunDirectory
from nri_plugin.policy.model import Share
from nri_plugin.policy.refusals import FilesError, Refused
from tests.nri_plugin.host.interruptions import KILLED, NOT_INTERRUPTED, interrupted
from tests.nri_plugin.objects import clear, planned

pytestmark = pytest.mark.node

SHARES = (Share("GPU-1", 3, 5 << 30, 40), Share("GPU-2", 4, 1, 100))
GRANT_ID = 7
MADE_NS = 5_000
C1, SHARED = planned("c1", SHARES), planned("pod-u", SHARES, shared=True)
OURS = "/.gpuslice/libvgpu.so\n"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDirectory]:
    run = RunDirectory(tmp_path / "state/run", lambda: GRANT_ID, lambda: MADE_NS)
    yield run
    clear(run)
    assert not run.root.exists() or not os.listdir(run.root)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def read_grant(directory: Path) -> grant_file.Grant:
    grant = grant_file.decode((directory / "grant").read_bytes())
    assert grant is not None
    return grant


def test_the_files_that_are_written_and_their_modes(run: RunDirectory) -> None:
    run.apply(C1)
    directory = run.root / "c1"
    assert os.path.ismount(directory)
    assert (mode(run.root), mode(directory)) == (0o700, 0o755)
    assert (directory / "preload").read_text() == OURS
    assert (directory / "libvgpu.so").read_bytes() == b""
    gpus = (
        grant_file.Gpu("GPU-1", 5 << 30, 40, 3, context_bytes=512 << 20, code_bytes=64 << 20),
        grant_file.Gpu("GPU-2", 1, 100, 4, context_bytes=512 << 20, code_bytes=64 << 20),
    )
    assert read_grant(directory) == grant_file.Grant(GRANT_ID, gpus)
    region = (directory / "region").read_bytes()
    assert region == region_file.fresh(2, GRANT_ID, MADE_NS)
    # The file's blocks are allocated, so that a full file system never breaks a process's store.
    assert (directory / "region").stat().st_blocks * 512 >= len(region)
    assert (directory / "lease").read_bytes() == lease_file.fresh(2, launches_checked=True)
    drivers = ("driver/libcuda.so.1", "driver/libnvidia-ml.so.1")
    readable = (*drivers, "grant", "lease", "libvgpu.so", "plan.json", "preload", "preload-nix")
    modes = {str(each.relative_to(directory)): mode(each) for each in directory.rglob("*")}
    assert modes == {"driver": 0o755, "region": 0o666, **dict.fromkeys(readable, 0o444)}


@pytest.mark.parametrize(("percents", "is_capped"), [((0, 100), False), ((100, 30), True)])
def test_a_grant_has_what_a_process_is_charged_at_once(
    run: RunDirectory, percents: Sequence[int], is_capped: bool
) -> None:
    """The first lease of a capped share makes processes check launches. The policy stays in the
    grant after a measurement is written."""
    run = replace(run, code_bytes=1 << 20, managed_free=True)
    shares = [Share(f"GPU-{n}", n, 1, each) for n, each in enumerate(percents)]
    plan = replace(planned("c1", shares), policy=Policy.CAPPED)
    run.apply(plan, {"GPU-1": 300 << 20})
    with Account(run.root / "c1") as account:
        account.write_overheads({"GPU-1": 70 << 20})
        assert account.compute()["GPU-1"].policy is Policy.CAPPED
    assert [
        (gpu.context_bytes, gpu.code_bytes, gpu.managed_free, gpu.policy, gpu.overhead_bytes)
        for gpu in read_grant(run.root / "c1").gpus
    ] == [
        (names.CONTEXT_BYTES_ASSUMED, 1 << 20, True, Policy.CAPPED, 0),
        (300 << 20, 1 << 20, True, Policy.CAPPED, 70 << 20),
    ]
    lease = lease_file.fresh(2, launches_checked=is_capped)
    assert (run.root / "c1/lease").read_bytes() == lease


def test_a_second_container_finds_the_files_as_their_users_have_them(run: RunDirectory) -> None:
    run.apply(SHARED)
    with Account(run.root / "pod-u") as account:
        account.write_overheads({"GPU-1": 70 << 20})
    region = run.root / "pod-u/region"
    region.write_bytes(b"used")
    inode = region.stat().st_ino
    run.apply(SHARED)
    assert [gpu.overhead_bytes for gpu in run.grants(["pod-u"])["pod-u"].gpus] == [70 << 20, 0]
    with pytest.raises(FilesError, match="not the one that its running containers have"):
        run.apply(planned("pod-u", SHARES[:1], shared=True))
    assert (region.stat().st_ino, region.read_bytes()) == (inode, b"used")


def test_an_images_preloads_come_behind_ours_in_the_same_file(run: RunDirectory) -> None:
    with pytest.raises(FilesError, match="preload: No such file"):
        run.add_preloads(C1, {names.CONTAINER_PRELOAD: [b"/a.so"]})
    run.apply(C1)
    file = run.root / "c1/preload"
    inode = file.stat().st_ino
    for _ in range(2):
        run.add_preloads(C1, {names.CONTAINER_PRELOAD: [b"/lib/b.so", b"/lib/a.so"]})
        run.add_preloads(C1, {names.CONTAINER_PRELOAD_NIX: [b"/nix/c.so"]})
    assert file.read_text() == f"{OURS}/lib/b.so\n/lib/a.so\n"
    assert (run.root / "c1/preload-nix").read_text() == f"{OURS}/nix/c.so\n"
    room = preload_list.MAX_BYTES - len(OURS) - 1
    with pytest.raises(Refused, match=r"invalid value \(4097 bytes\): must be at most 4096"):
        run.add_preloads(C1, {names.CONTAINER_PRELOAD: [b"x" * (room + 1)]})
    run.add_preloads(C1, {names.CONTAINER_PRELOAD: [b"x" * room]})
    assert file.stat().st_size == preload_list.MAX_BYTES
    assert (file.stat().st_ino, mode(file)) == (inode, 0o444)


def test_containers_that_share_a_grant_have_preload_lists_of_their_own(run: RunDirectory) -> None:
    """Each container adds its own image's libraries. A recreated container starts with an empty
    list, whatever the umask."""
    for number in range(3):
        plan = planned("pod-u", SHARES, shared=True, container=str(number))
        run.apply(plan)
        entry = f"/lib/{number}.so".encode()
        run.add_preloads(plan, {place: [entry] for place in plan.preloads})
    before = os.umask(0o077)
    try:
        for name in ("0", "new"):
            run.apply(planned("pod-u", SHARES, shared=True, container=name))
    finally:
        os.umask(before)
    lists = {"": "", ".0": "", ".1": "/lib/1.so\n", ".2": "/lib/2.so\n", ".new": ""}
    for name in ("preload", "preload-nix"):
        for suffix, more in lists.items():
            file = run.root / "pod-u" / f"{name}{suffix}"
            assert (file.read_text(), mode(file)) == (OURS + more, 0o444)


@pytest.mark.parametrize("gpus", [1, 16])
def test_a_directory_is_a_small_file_system_of_its_own(run: RunDirectory, gpus: int) -> None:
    run.apply(planned("c1", [Share(f"GPU-{n}", n, 1, 1) for n in range(gpus)]))
    status = os.statvfs(run.root / "c1")
    assert status.f_flag & os.ST_NOSUID and status.f_flag & os.ST_NODEV
    assert 0 < status.f_bavail * status.f_frsize <= 512 << 10
    with pytest.raises(OSError, match="No space left"), (run.root / "c1/region").open("ab") as file:
        file.write(b"x" * (1 << 20))


def test_remove_is_idempotent_and_unmounts_what_is_stacked(run: RunDirectory) -> None:
    run.remove("c1")
    run.apply(C1)
    tmpfs.mount(run.root / "c1", 4096, 4)
    for _ in range(2):
        run.remove("c1")
        assert not (run.root / "c1").exists()


def test_only_complete_grants_are_returned(run: RunDirectory) -> None:
    for key in ("c1", "c2", "pod-u"):
        run.apply(planned(key, SHARES))
    (run.root / "c2/grant").write_bytes(b"torn")
    (run.root / "empty").mkdir()
    (run.root / "pod-u/grant").unlink()
    (run.root / "pod-u/grant").mkdir()
    found = run.grants(["c1", "c2", "pod-u", "empty", "absent"])
    assert list(found) == ["c1"]
    assert [gpu.uuid for gpu in found["c1"].gpus] == ["GPU-1", "GPU-2"]


def test_the_stored_plans_of_all_containers_or_of_none(run: RunDirectory) -> None:
    """The stored plans tell which releases are mounted. If a plan cannot be read, any release may
    be mounted, and the agent removes none."""
    releases = [f"/store/{number}/libvgpu.so" for number in range(3)]
    one = planned("c1", SHARES, library=releases[0])
    two = [planned("pod-u", SHARES, True, f"{n}", library=releases[n]) for n in (1, 2)]
    for plan in (one, *two):
        run.apply(plan)
    stored = [run.plan("c1", "main"), run.plan("pod-u", "2")]
    assert [plan and plan.files for plan in stored] == [one.files, two[1].files]
    (run.root / "empty").mkdir()
    mounted = run.mounted()
    assert mounted is not None and set(releases) <= set(mounted)
    (run.root / "pod-u/plan.2.json").write_text("torn")
    assert run.mounted() is None
    (run.root / "pod-u/plan.2.json").unlink()
    (run.root / "c1/plan.json").unlink()
    assert (run.mounted(), run.plan("c1", "main")) == (None, None), "its release wrote none"
    (run.root / "empty").rmdir()


def test_a_failed_preparation_leaves_no_files(run: RunDirectory) -> None:
    with pytest.raises(ValueError, match="uuid"):
        run.apply(planned("c1", [Share("GPU-" + "x" * 60, 0, 1, 1)]))
    assert run.keys() == set()
    run.root.rmdir()
    run.root.write_text("in the way")
    with pytest.raises(FilesError, match="File exists"):
        run.apply(C1)
    run.root.unlink()


def test_killed_at_each_step(run: RunDirectory) -> None:
    """A removal after the kill deletes what was made, or a second attempt finishes the work."""

    def prepare() -> None:
        RunDirectory(run.root, lambda: 1, run.now_ns).apply(SHARED)

    ids, end = [], KILLED
    for number in range(1, 200):
        end = interrupted(prepare, number)
        assert end in (KILLED, NOT_INTERRUPTED)
        run.remove("pod-u")
        assert run.keys() == set()
        assert interrupted(prepare, number) == end
        complete = run.grants(["pod-u"])
        run.apply(SHARED)
        grant = read_grant(run.root / "pod-u")
        assert grant.grant_id == (1 if complete else GRANT_ID)
        region, lease = (run.root / "pod-u" / name for name in ("region", "lease"))
        assert region.read_bytes() == region_file.fresh(2, grant.grant_id, MADE_NS)
        assert lease.read_bytes() == lease_file.fresh(2, launches_checked=True)
        run.remove("pod-u")
        ids.append(grant.grant_id)
        if end == NOT_INTERRUPTED:
            break
    assert end == NOT_INTERRUPTED
    assert ids.count(GRANT_ID) > 30 and ids[-2:] == [1, 1]


VERSIONS = {
    "grant": (grant_file.HEAD, grant_file.VERSION),
    "region": (region_file.HEADER, region_file.VERSION),
}


def make_neighbours(path: Path, step: int) -> bytes:
    """Add `step` to the layout version in the file, and return the file's bytes."""
    data = bytearray(path.read_bytes())
    head, version = VERSIONS[path.name]
    for base in (0, grant_file.COPY_STRIDE) if path.name == "grant" else (0,):
        struct.pack_into("<I", data, base + head.offset("version"), version + step)
        if path.name == "grant":
            end = base + grant_file.CHECKSUM_OFFSET
            struct.pack_into("<I", data, end, binascii.crc32(data[base:end]))
    path.write_bytes(data)
    return bytes(data)


@pytest.mark.parametrize("step", [-1, 1])
@pytest.mark.parametrize("name", VERSIONS)
def test_files_of_another_version_are_not_shared(name: str, step: int, run: RunDirectory) -> None:
    """New files would be a second limit beside the running container's. The library that this agent
    mounts refuses a region of another version."""
    run.apply(SHARED)
    before = make_neighbours(run.root / "pod-u" / name, step)
    inode = (run.root / "pod-u/region").stat().st_ino
    of = f"a {name} of version {VERSIONS[name][1] + step}, of another release"
    with pytest.raises(FilesError, match=f"{of} of the agent: delete the pod"):
        run.apply(SHARED)
    assert (run.root / "pod-u" / name).read_bytes() == before, "its users keep it"
    assert (run.root / "pod-u/region").stat().st_ino == inode
