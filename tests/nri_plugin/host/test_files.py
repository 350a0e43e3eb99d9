"""The run directory on a real kernel: mounts, modes, and a kill between any two steps."""

from __future__ import annotations

import multiprocessing
import os
import stat
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gpuslice.contract import grant_file, lease_file, names, region_file
from gpuslice.gpu.account import Account
from nri_plugin.host import files, tmpfs
from nri_plugin.host.files import RunDirectory
from nri_plugin.policy import preload_list
from nri_plugin.policy.model import Share
from nri_plugin.policy.plan import ContainerPlan
from nri_plugin.policy.refusals import FilesError, Refused
from tests.nri_plugin.objects import clear, planned

pytestmark = pytest.mark.node

SHARES = (Share("GPU-1", 3, 5 << 30, 40), Share("GPU-2", 4, 1, 100))
GRANT_ID = 7
MADE_NS = 5_000
C1 = planned("c1", SHARES)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    root = tmp_path / "run"
    yield root
    clear(RunDirectory(root, lambda: 1))
    assert not root.exists() or not list(root.iterdir())


def now() -> int:
    return MADE_NS


@pytest.fixture
def run(root: Path) -> RunDirectory:
    return RunDirectory(root, lambda: GRANT_ID, now)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_files_that_are_written_and_their_modes(run: RunDirectory, root: Path) -> None:
    run.apply(planned("c1", SHARES))
    directory = root / "c1"
    assert os.path.ismount(directory)
    assert mode(root) == 0o700
    assert mode(directory) == 0o755
    assert sorted(os.listdir(directory / "driver")) == ["libcuda.so.1", "libnvidia-ml.so.1"]
    assert (directory / "preload").read_text() == "/.gpuslice/libvgpu.so\n"
    assert (directory / "libvgpu.so").read_bytes() == b""
    assert grant_file.decode((directory / "grant").read_bytes()) == grant_file.Grant(
        GRANT_ID,
        (
            grant_file.Gpu("GPU-1", 5 << 30, 40, 3, context_bytes=512 << 20, code_bytes=64 << 20),
            grant_file.Gpu("GPU-2", 1, 100, 4, context_bytes=512 << 20, code_bytes=64 << 20),
        ),
    )
    region = (directory / "region").read_bytes()
    assert region == region_file.fresh(2, GRANT_ID, MADE_NS)
    # Its blocks are allocated: a process's store never fails for a full file system.
    assert (directory / "region").stat().st_blocks * 512 >= len(region)
    assert (directory / "lease").read_bytes() == lease_file.fresh(2, launches_checked=True)
    modes = {name: mode(directory / name) for name in os.listdir(directory)}
    assert modes == {
        "driver": 0o755,
        "grant": 0o444,
        "lease": 0o444,
        "libvgpu.so": 0o444,
        "plan.json": 0o444,
        "preload": 0o444,
        "preload-nix": 0o444,
        "region": 0o666,
    }


@pytest.mark.parametrize(("percents", "launches_checked"), [((0, 100), False), ((100, 30), True)])
def test_a_grant_has_what_a_process_is_charged_at_once(
    run: RunDirectory, root: Path, percents: Sequence[int], launches_checked: bool
) -> None:
    """Launches are checked from the start where a share is capped. The compute limit stays forced
    when a measurement is written into the grant."""
    run = RunDirectory(
        root, lambda: GRANT_ID, now, core_forced=True, code_bytes=1 << 20, managed_free=True
    )
    shares = [Share(f"GPU-{n}", n, 1, each) for n, each in enumerate(percents)]
    run.apply(planned("c1", shares), {"GPU-1": 300 << 20})
    with Account(root / "c1") as account:
        account.write_overheads({"GPU-1": 70 << 20})
    grant = grant_file.decode((root / "c1/grant").read_bytes())
    assert grant is not None
    assert [
        (gpu.context_bytes, gpu.code_bytes, gpu.managed_free, gpu.core_forced, gpu.overhead_bytes)
        for gpu in grant.gpus
    ] == [
        (names.CONTEXT_BYTES_ASSUMED, 1 << 20, True, True, 0),
        (300 << 20, 1 << 20, True, True, 70 << 20),
    ]
    lease = lease_file.fresh(2, launches_checked=launches_checked)
    assert (root / "c1/lease").read_bytes() == lease


def test_a_second_container_keeps_what_was_measured_and_needs_this_releases_region(
    run: RunDirectory, root: Path
) -> None:
    """The library that this agent mounts refuses a region of another version."""
    plan = planned("pod-u", SHARES, shared=True)
    run.apply(plan)
    with Account(root / "pod-u") as account:
        account.write_overheads({"GPU-1": 70 << 20})
    run.apply(plan)
    assert [gpu.overhead_bytes for gpu in run.grants(["pod-u"])["pod-u"].gpus] == [70 << 20, 0]
    header = bytearray(region_file.header(2, GRANT_ID, MADE_NS))
    struct.pack_into("<I", header, region_file.HEADER.offset("version"), region_file.VERSION + 1)
    (root / "pod-u/region").write_bytes(header)
    with pytest.raises(FilesError, match=r"region of version 6, .* delete the pod"):
        run.apply(plan)
    assert (root / "pod-u/region").read_bytes() == header, "its users keep it"


def test_an_images_preloads_come_behind_ours_in_the_same_file(
    run: RunDirectory, root: Path
) -> None:
    with pytest.raises(FilesError, match="preload: No such file"):
        run.add_preloads(C1, {names.CONTAINER_PRELOAD: [b"/a.so"]})
    run.apply(C1)
    ours, file = "/.gpuslice/libvgpu.so\n", root / "c1/preload"
    inode = file.stat().st_ino
    for _ in range(2):
        run.add_preloads(C1, {names.CONTAINER_PRELOAD: [b"/lib/b.so", b"/lib/a.so"]})
        run.add_preloads(C1, {names.CONTAINER_PRELOAD_NIX: [b"/nix/c.so"]})
    assert file.read_text() == f"{ours}/lib/b.so\n/lib/a.so\n"
    assert (root / "c1/preload-nix").read_text() == f"{ours}/nix/c.so\n"
    room = preload_list.MAX_BYTES - len(ours) - 1
    with pytest.raises(Refused, match=r"invalid value \(4097 bytes\): must be at most 4096"):
        run.add_preloads(C1, {names.CONTAINER_PRELOAD: [b"x" * (room + 1)]})
    run.add_preloads(C1, {names.CONTAINER_PRELOAD: [b"x" * room]})
    assert file.stat().st_size == preload_list.MAX_BYTES
    assert (file.stat().st_ino, mode(file)) == (inode, 0o444)


def test_containers_that_share_a_grant_have_preload_lists_of_their_own(
    run: RunDirectory, root: Path
) -> None:
    """Each has its own image's libraries, and is recreated with them, under any umask."""
    for number in range(3):
        plan = planned("pod-u", SHARES, shared=True, container=str(number))
        run.apply(plan)
        entry = f"/lib/{number}.so".encode()
        run.add_preloads(plan, {place: [entry] for place in plan.preloads})
    for number in range(3):
        for name in (f"preload.{number}", f"preload-nix.{number}"):
            text = (root / "pod-u" / name).read_text()
            assert text == f"/.gpuslice/libvgpu.so\n/lib/{number}.so\n"
            assert mode(root / "pod-u" / name) == 0o444
    assert (root / "pod-u/preload").read_text() == "/.gpuslice/libvgpu.so\n"
    before = os.umask(0o077)
    try:
        for name in ("0", "new"):
            run.apply(planned("pod-u", SHARES, shared=True, container=name))
    finally:
        os.umask(before)
    for name in ("preload.0", "preload.new"):
        assert (root / "pod-u" / name).read_text() == "/.gpuslice/libvgpu.so\n"
        assert mode(root / "pod-u" / name) == 0o444


@pytest.mark.parametrize("gpus", [1, 16])
def test_a_containers_directory_is_a_small_file_system_of_its_own(
    run: RunDirectory, root: Path, gpus: int
) -> None:
    run.apply(planned("c1", [Share(f"GPU-{n}", n, 1, 1) for n in range(gpus)]))
    status = os.statvfs(root / "c1")
    assert status.f_flag & os.ST_NOSUID
    assert status.f_flag & os.ST_NODEV
    free = status.f_bavail * status.f_frsize
    assert 0 < free <= 512 << 10
    with pytest.raises(OSError, match="No space left"), (root / "c1/region").open("ab") as file:
        file.write(b"x" * (1 << 20))


def test_a_shared_directory_stays_as_its_users_have_it(run: RunDirectory, root: Path) -> None:
    run.apply(planned("pod-u", SHARES, shared=True))
    inode = (root / "pod-u/region").stat().st_ino
    (root / "pod-u/region").write_bytes(b"used")
    run.apply(planned("pod-u", SHARES, shared=True))
    assert (root / "pod-u/region").stat().st_ino == inode
    assert (root / "pod-u/region").read_bytes() == b"used"
    with pytest.raises(FilesError, match="not the one that its running containers have"):
        run.apply(planned("pod-u", SHARES[:1], shared=True))
    assert (root / "pod-u/region").read_bytes() == b"used"


def test_remove_is_idempotent_and_unmounts_what_is_stacked(run: RunDirectory, root: Path) -> None:
    run.remove("never")
    run.apply(planned("c1", SHARES))
    tmpfs.mount(root / "c1", 4096, 4)
    run.remove("c1")
    run.remove("c1")
    assert not (root / "c1").exists()


def test_only_complete_grants_are_returned(run: RunDirectory, root: Path) -> None:
    for key in ("c1", "c2", "pod-u"):
        run.apply(planned(key, SHARES))
    (root / "c2/grant").write_bytes(b"torn")
    (root / "empty").mkdir()
    (root / "pod-u/grant").unlink()
    (root / "pod-u/grant").mkdir()
    found = run.grants(["c1", "c2", "pod-u", "empty", "absent"])
    assert list(found) == ["c1"]
    assert [gpu.uuid for gpu in found["c1"].gpus] == ["GPU-1", "GPU-2"]


def test_the_stored_plans_of_all_containers_or_of_none(run: RunDirectory, root: Path) -> None:
    """A release of the library that a container mounts must not be removed."""
    releases = [f"/store/{number}/libvgpu.so" for number in range(4)]
    one = planned("c1", SHARES, library=releases[0])
    run.apply(one)
    stored = run.plan("c1", "main")
    assert stored is not None and stored.files == one.files
    for name, library in zip(("one", "two"), releases[1:], strict=False):
        run.apply(planned("pod-u", SHARES, True, name, library=library))
    stored = run.plan("pod-u", "two")
    assert stored is not None and stored.files[names.CONTAINER_LIBRARY] == releases[2]
    (root / "empty").mkdir()
    mounted = run.mounted()
    assert mounted is not None and set(releases[:3]) <= set(mounted)
    (root / "pod-u/plan.two.json").write_text("torn")
    assert run.mounted() is None
    (root / "pod-u/plan.two.json").unlink()
    (root / "c1/plan.json").unlink()
    assert (run.mounted(), run.plan("c1", "main")) == (None, None), "its release wrote none"
    (root / "empty").rmdir()


def test_a_failed_preparation_leaves_no_files(run: RunDirectory, root: Path) -> None:
    share = Share("GPU-" + "x" * 60, 0, 1, 1)
    with pytest.raises(ValueError, match="uuid"):
        run.apply(planned("c1", [share]))
    assert run.keys() == set()
    root.rmdir()
    root.write_text("in the way")
    with pytest.raises(FilesError, match="File exists"):
        run.apply(planned("c1", SHARES))
    root.unlink()


FILES = (
    *("preload", "libvgpu.so", "region", "lease", "plan.main.json", "grant"),
    *("region half", "lease half", "grant half"),
)


def die_after(step: str, root: Path, shares: Sequence[Share]) -> None:
    """Prepare in a process of its own, and exit right after `step`."""
    write, write_own, mount = files._write, files._write_own, tmpfs.mount

    def dying_mount(
        path: Path, size_bytes: int, inodes: int, source: str = names.PLUGIN_NAME
    ) -> None:
        mount(path, size_bytes, inodes, source)
        if step == "mount":
            os._exit(9)

    def dying_write(path: str, mode: int, data: bytes, size_bytes: int = 0) -> None:
        if step == f"{os.path.basename(path)} half":
            write(path, mode, data[: len(data) // 2])
            os._exit(9)
        write(path, mode, data, size_bytes)
        if step == os.path.basename(path):
            os._exit(9)

    def dying_write_own(path: Path, plan: ContainerPlan) -> None:
        write_own(path, plan)
        if step == "plan.main.json":
            os._exit(9)

    files._write, files._write_own = dying_write, dying_write_own
    tmpfs.mount = dying_mount  # type: ignore[assignment]
    RunDirectory(root, lambda: 1, now).apply(planned("pod-u", shares, shared=True))
    os._exit(1)


@pytest.mark.parametrize("step", ["mount", *FILES])
def test_killed_between_two_steps(step: str, root: Path) -> None:
    run = RunDirectory(root, lambda: GRANT_ID, now_ns=now)
    arguments = (step, root, SHARES)
    child = multiprocessing.get_context("fork").Process(target=die_after, args=arguments)
    child.start()
    child.join()
    assert child.exitcode == 9
    # Either the next attempt finishes the work, ...
    run.apply(planned("pod-u", SHARES, shared=True))
    grant = grant_file.decode((root / "pod-u/grant").read_bytes())
    assert grant is not None
    assert grant.grant_id == (1 if step == "grant" else GRANT_ID)
    assert (root / "pod-u/region").read_bytes() == region_file.fresh(2, grant.grant_id, MADE_NS)
    assert (root / "pod-u/lease").read_bytes() == lease_file.fresh(2, launches_checked=True)
    run.remove("pod-u")
    # ... or the next removal deletes the rest.
    child = multiprocessing.get_context("fork").Process(target=die_after, args=arguments)
    child.start()
    child.join()
    assert run.keys() == {"pod-u"}
    run.remove("pod-u")
    assert run.keys() == set()
