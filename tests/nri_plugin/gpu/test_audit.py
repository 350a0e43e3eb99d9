"""The audit's judgement, by what a /proc of files shows and what NVML lists."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpuslice.contract import names
from nri_plugin.gpu import container_processes
from nri_plugin.gpu.audit import Audit, Finding, Sample
from nri_plugin.gpu.container_processes import ContainerProcesses, has_library
from nri_plugin.metrics import Metrics
from nri_plugin.policy.ledger import Hold, Part
from nri_plugin.policy.model import Pod
from nri_plugin.policy.mountinfo import Location, Visible, parse
from nri_plugin.policy.notices import Notices
from nri_plugin.policy.plan import ContainerPlan
from tests.support import GIB

GPU, MIB = "GPU-1", 1 << 20
CODE = 64 * MIB
STRANGER = "f" * 64
LOADER = "7f00-7f01 r-xp 0 00:20 11 /usr/lib/x86_64/ld-linux-x86-64.so.2"
EXE = "5500-5501 r-xp 0 00:20 10 /opt/program"
LIBC = "7f02-7f03 r-xp 0 00:20 12 /usr/lib/libc.so.6"
OURS = "7f04-7f05 r-xp 0 00:30 77 /.gpuslice/libvgpu.so"
ROOT = "10 9 0:40 / / rw - overlay overlay rw"
PRELOAD = f"12 10 0:51 /preload {names.CONTAINER_PRELOAD} ro - tmpfs gpuslice ro"
HOST = "1 0 8:1 / / rw - ext4 x rw\n2 1 0:51 / /run/gpuslice/c1 rw - tmpfs gpuslice rw"


class Node:
    """One container with a grant of 2 GiB, and a process 11 that runs a dynamic program."""

    def __init__(self, root: Path) -> None:
        self.proc, self.store = root / "proc", root / "store"
        release = self.store / "a" / names.FILE_LIBRARY
        release.parent.mkdir(parents=True)
        release.write_bytes(b"")
        there = release.stat()
        device = f"{os.major(there.st_dev):02x}:{os.minor(there.st_dev):02x}"
        self.ours = f"7f04-7f05 r-xp 0 {device} {there.st_ino} /.gpuslice/libvgpu.so"
        self.metrics, self.notices = Metrics(), Notices()
        files = {names.CONTAINER_PRELOAD: "/run/gpuslice/c1/preload"}
        plan = ContainerPlan(key="c1", files=files)
        of_id = {STRANGER: ("other", "q", "main")}.get
        self.audit = Audit(self.store, self.metrics, self.notices, lambda *_: plan, of_id, CODE)
        self.processes = ContainerProcesses(self.proc)
        self.hold = Hold(
            "c1", "c1", "u", "main", "d/p/main", {GPU: Part(2 * GIB, 0)}, Pod("u", "d", "p")
        )
        self.usage: dict[int, int | None] | None = {}
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "self/mountinfo").write_text(HOST)
        self.process(11)

    def process(
        self, pid: int, container: str = "c1", namespace: str = "1", root: str = "/"
    ) -> None:
        directory = self.proc / str(pid)
        for name in ("ns", "fd"):
            (directory / name).mkdir(parents=True)
        (directory / "cgroup").write_text(f"0::/kubepods/{container}\n")
        (directory / "ns/mnt").symlink_to(f"mnt:[{namespace}]")
        (directory / "root").symlink_to(root)
        (directory / "exe").symlink_to("/opt/program")
        self.runs(pid, EXE, LOADER, self.ours, LIBC)
        self.mounts(pid, ROOT, PRELOAD)

    def runs(self, pid: int, *maps: str, stack: int = 7, runs: bool = True) -> None:
        """Replace the process's program. stack: differs for each exec."""
        (self.proc / f"{pid}/auxv").write_text(str(stack) if runs else "")
        (self.proc / f"{pid}/maps").write_text("\n".join(maps))

    def opens(self, pid: int, path: str) -> None:
        (self.proc / f"{pid}/fd/9").symlink_to(path)

    def mounts(self, pid: int, *lines: str) -> None:
        (self.proc / f"{pid}/mountinfo").write_text("\n".join(lines))

    def look(self) -> set[str]:
        """Look once. Return the findings whose metric is 1."""
        listed, holder = {*(self.usage or ())}, self.hold.container_id
        self.processes.find([holder], listed)
        known = self.processes.by_pid
        owners = dict.fromkeys((p for p in listed & known.keys() if known[p].container), holder)
        sample = Sample([self.hold], {GPU: self.usage}, owners, self.processes)
        self.audit.report(sample, self.audit.look(sample))
        return {finding for finding, value in self.values().items() if value}

    def twice(self) -> set[str]:
        self.look()
        return self.look()

    def values(self) -> Mapping[str, float]:
        (family,) = (
            each
            for each in self.metrics.registry.collect()
            if each.name == "gpuslice_audit_findings"
        )
        return {each.labels["finding"]: each.value for each in family.samples}

    def events(self) -> list[str]:
        texts = []
        while notice := self.notices.first():
            texts.append(notice.text)
            self.notices.done(notice)
        return texts


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.mark.parametrize(
    ("sizes", "found"),
    [
        ({11: 2 * GIB}, set()),
        ({11: 2 * GIB + CODE}, set()),
        ({11: 2 * GIB + CODE + 1}, {"over_grant"}),
        ({11: GIB, 12: GIB + 2 * CODE}, set()),
        ({11: GIB + CODE, 12: GIB + CODE + 1}, {"over_grant"}),
        ({11: 3 * GIB, 12: None}, set()),
        (None, set()),
    ],
    ids=["the grant", "and code", "more", "code of two", "more of two", "no figure", "no answer"],
)
def test_memory_beyond_the_grant(
    node: Node, sizes: dict[int, int | None] | None, found: set[str]
) -> None:
    node.process(12)
    node.usage = sizes
    assert node.twice() == found


@pytest.mark.parametrize(
    ("maps", "expected"),
    [
        ([], None),
        ([EXE], False),
        ([EXE, LOADER], None),
        ([EXE, LOADER, LIBC], False),
        ([EXE, LOADER, OURS], True),
        ([EXE, "7f00-7f01 r-xp 0 00:20 11 /lib/ld-musl-x86_64.so.1"], False),
        ([EXE, LOADER, "7f04-7f05 r-xp 0 00:20 77 /.gpuslice/libvgpu.so"], False),
        (["7ffe-7fff r-xp 0 00:00 0 [vdso]"], None),
    ],
    ids=["ended", "static", "loads", "dynamic", "ours", "musl", "another file", "kernel"],
)
def test_whether_a_process_has_the_library(maps: list[str], expected: bool | None) -> None:
    assert has_library("\n".join(maps), {"00:30 77"}) is expected
    late = has_library("\n".join(maps), {"00:30 77"}, late=True)
    assert late is (False if expected is None and LOADER in maps else expected)


def test_a_process_on_the_gpu_without_the_library(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.usage = {11: 300 * MIB}
    assert node.twice() == set()
    node.runs(11, EXE, stack=8)
    assert node.look() == set(), "one look may have met an exec"
    assert node.look() == {"no_library"}
    text = f"pid 11 (/opt/program) has not mapped the library and holds 300 MiB of {GPU}"
    assert node.events() == [f'container "main": {text}']
    node.usage = {}
    assert node.look() == set()
    assert node.values() == {"no_library": 0.0}
    node.usage = {11: MIB}
    assert node.twice() == {"no_library"}
    assert node.events() == [], "an event is written once"
    assert sum(text.startswith("audit finding") for text in caplog.messages) == 1


def test_a_process_with_the_device_open(node: Node) -> None:
    node.opens(11, "/dev/nvidia3")
    assert node.twice() == set(), "it has the library"
    node.process(12)
    node.runs(12, EXE)
    node.opens(12, "/dev/nvidiactl")
    (node.proc / "12/fd/7").symlink_to("/tmp/dev/nvidia0")
    assert node.twice() == set(), "no GPU"
    (node.proc / "12/fd/8").symlink_to("/dev/nvidia0")
    assert node.twice() == {"no_library"}


def test_a_process_whose_loader_still_works(node: Node) -> None:
    node.usage = {11: MIB}
    node.runs(11, EXE, LOADER)
    assert not any(node.look() for _ in range(8))
    node.runs(11, EXE, LOADER, node.ours)
    assert node.twice() == set()
    node.runs(11, EXE, LOADER, stack=8)
    assert any(node.look() for _ in range(14)), "a loader does not take seconds"


def test_processes_that_ended_or_are_of_the_host(node: Node) -> None:
    node.usage = {11: MIB, 99: 3 * GIB}
    node.runs(11, EXE, runs=False)
    node.process(13, "system.slice")
    node.runs(13, EXE)
    node.opens(13, "/dev/nvidia0")
    assert node.twice() == set()


def test_a_process_that_enters_its_container_late(node: Node) -> None:
    node.process(12, "system.slice")
    node.runs(12, EXE)
    node.opens(12, "/dev/nvidia0")
    assert node.look() == set()
    (node.proc / "12/cgroup").write_text("0::/c1\n")
    assert node.twice() == {"no_library"}


def test_a_number_that_another_process_gets(node: Node) -> None:
    node.process(12, "system.slice")
    node.process(13)
    assert not any(node.look() for _ in range(3))
    node.runs(13, EXE)
    node.opens(13, "/dev/nvidia0")
    shutil.rmtree(node.proc / "12")
    (node.proc / "13").rename(node.proc / "12")
    assert node.twice() == {"no_library"}


def test_a_container_whose_grant_is_known_late(node: Node) -> None:
    node.process(12)
    node.runs(12, EXE)
    node.opens(12, "/dev/nvidia0")
    hold, node.hold = node.hold, replace(node.hold, container_id="c2", key="c2")
    assert not any(node.look() for _ in range(3))
    node.hold = hold
    assert node.twice() == {"no_library"}


def test_a_container_that_keeps_a_library_that_was_repaired(node: Node) -> None:
    node.usage = {11: MIB}
    node.look()
    (node.store / "a" / names.FILE_LIBRARY).rename(node.store / "old")
    (node.store / "a" / names.FILE_LIBRARY).write_bytes(b"")
    node.mounts(11, ROOT, PRELOAD.replace("/preload", "/preload//deleted", 1))
    node.process(12)
    node.usage = {12: MIB}
    assert node.twice() == node.twice() == set()
    node.runs(12, EXE, stack=8)
    assert node.twice() == {"no_library"}


def test_a_container_whose_mounts_were_never_all_found_is_not_judged(node: Node) -> None:
    node.mounts(11, ROOT, PRELOAD.replace("/preload", "/preload//deleted", 1))
    node.runs(11, EXE, LOADER, LIBC)
    node.usage = {11: MIB}
    assert not any(node.look() for _ in range(5))


def test_a_container_that_a_look_did_not_reach_is_judged_by_the_next(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node.look()
    node.runs(11, EXE, stack=8)
    node.usage = {11: MIB}
    assert node.look() == set()
    monkeypatch.setattr(container_processes, "_NODE_S", 0)
    assert node.look() == node.look() == set()
    monkeypatch.setattr(container_processes, "_NODE_S", 9)
    assert node.look() == {"no_library"}
    monkeypatch.setattr(container_processes, "_NODE_S", 0)
    assert node.look() == {"no_library"}
    assert sum("takes too long" in text for text in caplog.messages) == 1


def test_no_container_waits_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path)
    for pid in (12, 13, 14):
        node.process(pid, f"c{pid}")
    processes = ContainerProcesses(node.proc)
    clock = SimpleNamespace(thread_time=count(0, 0.02).__next__, monotonic=count().__next__)
    monkeypatch.setattr(container_processes, "time", clock)
    known, reached = ["c1", "c12", "c13", "c14"], list[str]()
    for _ in range(4):
        processes.find(known, ())
        reached += [container for container, _ in processes.look(known, (), set)]
    assert {*reached} == {*known}
    assert max(map(reached.count, known)) - min(map(reached.count, known)) <= 1


def test_a_table_of_mounts_that_is_too_long_is_read_once(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.look()
    node.process(12, namespace="2")
    node.mounts(12, ROOT, *["x" * 99] * 90_000)
    reads = list[int]()
    read = os.read

    def counted(descriptor: int, size: int) -> bytes:
        data = read(descriptor, size)
        reads.append(len(data) if data[-1:] == b"x" else 0)
        return data

    monkeypatch.setattr(os, "read", counted)
    assert not any(node.look() for _ in range(4))
    assert 256 << 10 < sum(reads) < 512 << 10


OTHER_ROOT = "10 9 0:41 / / rw - tmpfs tmpfs rw"
COVERS = f"13 12 0:6 /null {names.CONTAINER_PRELOAD} rw - devtmpfs devtmpfs rw"
ETC = "14 10 0:60 / /etc rw - tmpfs tmpfs rw"


@pytest.mark.parametrize(
    ("mounts", "found"),
    [
        ([ROOT, PRELOAD, "13 10 0:60 / /mnt rw - tmpfs tmpfs rw"], set()),
        ([ROOT], {"covered"}),
        ([ROOT, PRELOAD, COVERS], {"covered"}),
        ([ROOT, PRELOAD, ETC], {"covered"}),
        ([ROOT, PRELOAD.replace("/etc/", "/etc2/")], {"covered"}),
        ([OTHER_ROOT], set()),
        ([""], set()),
    ],
    ids=["one more", "removed", "mounted over", "hidden", "moved", "a sandbox's own", "unreadable"],
)
@pytest.mark.parametrize("pid", [11, 12], ids=["in its namespace", "in another one"])
def test_a_file_that_is_covered(node: Node, pid: int, mounts: list[str], found: set[str]) -> None:
    assert node.look() == set()
    if pid == 12:
        node.process(12, namespace="2")
    node.mounts(pid, *mounts)
    assert node.look() == set()
    assert node.look() == found


def test_what_rarely_changes_is_read_seldom_and_at_once_for_a_new_program(node: Node) -> None:
    assert not any(node.look() for _ in range(6))
    node.mounts(11, ROOT)
    assert any(node.look() == {"covered"} for _ in range(5))
    assert node.look() == {"covered"}
    node.mounts(11, ROOT, PRELOAD)
    assert not any(node.look() for _ in range(5))
    node.mounts(11, ROOT)
    node.process(12)
    node.mounts(12, ROOT)
    assert node.twice() == {"covered"}


def test_mounts_before_the_start_and_of_a_chroot_are_not_judged(node: Node) -> None:
    node.mounts(11, ROOT)
    assert node.twice() == set(), "the runtime still makes the mounts"
    node.mounts(11, ROOT, PRELOAD)
    node.process(12, namespace="2", root="/chroot")
    node.mounts(12, ROOT)
    assert node.twice() == node.look() == set()


def test_a_container_without_a_share(node: Node) -> None:
    node.process(12, STRANGER)
    node.usage = {12: 5 * MIB}
    assert node.twice() == {"no_share"}
    assert node.events() == [], "its pod did not ask for a share"
    (sample,) = (
        each
        for family in node.metrics.registry.collect()
        for each in family.samples
        if each.name == "gpuslice_audit_findings"
    )
    named = {"namespace": "other", "pod": "q", "container": "main", "finding": Finding.NO_SHARE}
    assert sample.labels == named
    node.usage = {12: None}
    assert node.look() == set()


LINES = list(parse("\n".join((ROOT, PRELOAD, ETC.replace("/etc", "/mnt")))))


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", Location("0:40", "/")),
        ("/etc/x", Location("0:40", "/etc/x")),
        (names.CONTAINER_PRELOAD, Location("0:51", "/preload")),
        ("/mnt/a/b", Location("0:60", "/a/b")),
    ],
)
def test_the_mount_that_is_visible_at_a_path(path: str, expected: Location) -> None:
    assert Visible(LINES).at(path) == expected
    assert Visible(LINES[1:]).at(path) is None
