"""Which files are removed from a node, and which stay, also after a kill at each step."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from gpuslice.contract import names
from nri_plugin.host import cdi_generator, driver_root, releases, tmpfs
from nri_plugin.host.bundle import directory
from nri_plugin.host.files import RunDirectory
from nri_plugin.host.lock import FILE
from nri_plugin.host.removal import Removal, used_by_containers
from nri_plugin.host.store import keep_mounted
from nri_plugin.policy.model import Share
from tests.contract.libraries import library
from tests.nri_plugin.host.interruptions import KILLED, NOT_INTERRUPTED, interrupted
from tests.nri_plugin.host_files import put
from tests.nri_plugin.objects import clear, planned, settings

pytestmark = pytest.mark.node

SHARES: Final = (Share("GPU-1", 0, 5 << 30, 40),)
COPY: Final = names.HOST_LIBRARY.removeprefix("/")
OLD, NEW = library(content=b"old"), library(content=b"new")
HALF: Final = f".{driver_root.COPIED[0]}.17"
LEFT: Final = ["cdi", "cdi/nvidia.yaml", "run", "usr", "usr/local"]


class Node:
    def __init__(self, root: Path) -> None:
        self.root, self.run, self.copy = root, root / "run/gpuslice", root / COPY
        self.places = replace(
            settings(),
            run_dir=self.run,
            cdi_dirs=(root / "cdi",),
            containerd_state=root / "containerd",
            host_root=root,
        )
        self.store = self.places.store_dir
        self.files = RunDirectory(self.run, lambda: 7)
        keep_mounted(self.store)
        self.old = releases.publish(OLD, names.FILE_LIBRARY, self.store).parent
        releases.publish(NEW, names.FILE_LIBRARY, self.store)
        releases.replace(self.copy, NEW)
        for key in ("c1", "c2"):
            self.files.apply(planned(key, SHARES))
        for left in (
            *(self.run / FILE, self.run / ".cdi/.half", self.store / driver_root.COPIED[0]),
            *(self.store / HALF, self.copy.with_name(f".{names.FILE_LIBRARY}.new")),
            *(self.run / ".cdi" / cdi_generator.FILE, root / "cdi" / cdi_generator.FILE),
            root / "cdi/nvidia.yaml",
        ):
            put(left)

    def uninstall(self, dry_run: bool = False) -> dict[str, str]:
        done: dict[str, str] = {}

        def say(path: Path, what: str) -> None:
            done[str(path.relative_to(self.root))] = what

        Removal(self.places, say, dry_run).run()
        return done

    def stays(self) -> set[str]:
        done = self.uninstall()
        return {path for path, what in done.items() if what == "stays: a container has it mounted"}

    def there(self) -> list[str]:
        return sorted(str(each.relative_to(self.root)) for each in self.root.rglob("*"))

    def bundle(self, *sources: Path) -> Path:
        mounts = [{"destination": "/x", "source": str(source)} for source in sources]
        config = {"process": {"cwd": "/"}, "mounts": mounts}
        place = directory(self.places.containerd_state, "c")
        return put(place / "config.json", json.dumps(config))

    @contextmanager
    def process(self, *sources: Path) -> Iterator[None]:
        """Run a process in its own mount namespace, with bind mounts of these paths."""
        binds = ""
        for number, source in enumerate(sources):
            inside = self.root.with_name("inside") / str(number)
            if source.is_dir():
                inside /= names.CONTAINER_DIR.lstrip("/")
                inside.mkdir(parents=True)
            else:
                put(inside)
            binds += f"mount --bind {source} {inside} && "
        script = f"{binds}echo ready && exec sleep 1000"
        command = ["unshare", "--mount", "--propagation=private", "sh", "-ec", script]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None and process.stdout.readline() == "ready\n"
                yield
            finally:
                process.kill()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path / "host")
    yield made
    clear(made.files)
    if made.store.exists():
        tmpfs.clear(made.store)


def test_all_that_no_container_uses_is_removed(node: Node) -> None:
    before = node.there()
    with releases.locked(node.store):
        tried = node.uninstall(dry_run=True)
    assert node.there() == before
    assert set(tried.values()) == {"removed (dry run)"}
    done = node.uninstall()
    assert set(done.values()) == {"removed"} and done.keys() == tried.keys()
    assert node.there() == LEFT
    assert node.uninstall() == {}


def test_files_in_a_containers_bundle_stay_until_it_is_deleted(node: Node) -> None:
    config = node.bundle(node.run / "c1/grant", node.old / names.FILE_LIBRARY)
    whole, before = config.read_text(), node.there()
    config.write_text("[")
    with pytest.raises(OSError, match="is not as the runtime reads it"):
        node.uninstall()
    assert node.there() == before
    config.write_text(whole)
    stays = node.stays()
    assert stays == {"run/gpuslice/c1", f"run/gpuslice/.store/{node.old.name}"}
    assert (node.run / "c1/grant").exists() and node.files.keys() == {"c1"}
    assert (node.old / names.FILE_LIBRARY).read_bytes() == OLD
    assert {*os.listdir(node.store)} == {node.old.name, releases.LOCK, HALF}
    config.unlink()
    config.parent.rmdir()
    assert set(node.uninstall()) == stays | {"run/gpuslice/.store"}
    assert [each for each in node.there() if not each.startswith("containerd")] == LEFT


def test_what_a_process_has_mounted_stays_without_a_bundle(node: Node) -> None:
    grants = {"run/gpuslice/c1", "run/gpuslice/c2", f"run/gpuslice/.store/{node.old.name}"}
    library = node.old / names.FILE_LIBRARY
    with node.process(node.run / "c1", node.run / "c2/preload", library, node.copy):
        assert node.stays() == {*grants, COPY}
    assert set(node.uninstall()) == {*grants, COPY, "run/gpuslice/.store"}


def test_a_process_that_ends_while_it_is_read_is_passed_over(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    process = tmp_path / str(pid)
    (process / "ns").mkdir(parents=True)
    (process / "root").symlink_to("/")
    (process / "ns/mnt").symlink_to("mnt:[1]")
    # The kernel answers EINVAL to a read of an ended process's mountinfo.
    (process / "mountinfo").symlink_to(f"/proc/{pid}/mountinfo")
    try:
        assert used_by_containers(tmp_path / "containerd", tmp_path).paths == set()
    finally:
        os.waitpid(pid, 0)


def test_files_of_other_programs_stay(node: Node) -> None:
    node.copy.write_bytes(library(None))
    foreign = put(node.run / "foreign/file")
    done = node.uninstall()
    assert done[COPY] == "stays: it is not gpuslice's library"
    assert done["run/gpuslice/foreign"] == "stays: Directory not empty"
    ours = ("", "/.lock", "/foreign", "/foreign/file")
    copies = ("usr/local/vgpu", "usr/local/vgpu/.libvgpu.so.new", COPY)
    assert node.there() == sorted([*LEFT, *(f"run/gpuslice{each}" for each in ours), *copies])
    foreign.unlink()


def test_killed_at_each_step_the_next_run_completes_it(tmp_path: Path) -> None:
    for number in range(1, 100):
        node = Node(tmp_path / str(number))
        end = interrupted(node.uninstall, number)
        assert end in (KILLED, NOT_INTERRUPTED)
        node.uninstall()
        assert node.there() == LEFT, number
        if end == NOT_INTERRUPTED:
            break
    assert number > 20
