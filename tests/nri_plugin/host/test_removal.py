"""Files that are removed from a node, files that stay, and a kill at each step."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

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
from tests.nri_plugin.objects import clear, planned, settings

pytestmark = pytest.mark.node

SHARES: Final = (Share("GPU-1", 0, 5 << 30, 40),)
COPY: Final = names.HOST_LIBRARY.removeprefix("/")
OLD, NEW = library(content=b"old"), library(content=b"new")


class Node:
    """Its directories, as an agent and a distributor leave them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.places = replace(
            settings(),
            run_dir=root / "run/gpuslice",
            cdi_dirs=(root / "cdi",),
            containerd_state=root / "containerd",
            host_root=root,
        )
        self.copy = root / COPY
        self.files = RunDirectory(self.places.run_dir, lambda: 7)

    def fill(self) -> None:
        store = self.places.store_dir
        keep_mounted(store)
        self.old = releases.publish(OLD, names.FILE_LIBRARY, store).parent
        releases.publish(NEW, names.FILE_LIBRARY, store)
        releases.replace(self.copy, NEW)
        for key in ("c1", "c2"):
            self.files.apply(planned(key, SHARES))
        (self.places.run_dir / FILE).touch()
        (store / driver_root.COPIED[0]).touch()
        (store / f".{driver_root.COPIED[0]}.17").touch()
        (self.copy.parent / f".{names.FILE_LIBRARY}.new").touch()
        for place in (*self.places.cdi_dirs, self.places.run_dir / ".cdi"):
            place.mkdir()
            (place / cdi_generator.FILE).write_text("{}")
        (self.places.run_dir / ".cdi/.half").touch()
        (self.root / "cdi/nvidia.yaml").write_text("kind: nvidia.com/gpu")

    def uninstall(self, dry_run: bool = False) -> dict[str, str]:
        """Uninstall, and return what happened to each path below the root."""
        done: dict[str, str] = {}

        def say(path: Path, what: str) -> None:
            done[str(path.relative_to(self.root))] = what

        Removal(self.places, say, dry_run).run()
        return done

    def there(self) -> list[str]:
        return sorted(str(each.relative_to(self.root)) for each in self.root.rglob("*"))

    def bundle(self, *sources: Path) -> Path:
        """Adds a container with these mounts."""
        path = directory(self.places.containerd_state, "c")
        path.mkdir(parents=True)
        mounts = [{"destination": "/x", "source": str(source)} for source in sources]
        (path / "config.json").write_text(json.dumps({"process": {"cwd": "/"}, "mounts": mounts}))
        return path

    @contextmanager
    def process(self, *mounts: tuple[Path, Path]) -> Iterator[None]:
        """Start a process in a mount namespace of its own, with these bind mounts."""
        binds = "".join(f"mount --bind {source} {place} && " for source, place in mounts)
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
    made = Node(tmp_path)
    made.fill()
    yield made
    clear(made.files)
    if made.places.store_dir.exists():
        tmpfs.clear(made.places.store_dir)


LEFT: Final = ["cdi", "cdi/nvidia.yaml", "run", "usr", "usr/local"]


def test_all_that_no_container_uses_is_removed(node: Node) -> None:
    before = node.there()
    tried = node.uninstall(dry_run=True)
    assert node.there() == before
    assert set(tried.values()) == {"removed (dry run)"}
    done = node.uninstall()
    assert set(done.values()) == {"removed"} and done.keys() == tried.keys()
    assert node.there() == LEFT
    assert node.uninstall() == {}


def test_files_in_a_containers_bundle_stay_until_it_is_deleted(node: Node) -> None:
    grant = node.places.run_dir / "c1/grant"
    bundle = node.bundle(grant, node.old / names.FILE_LIBRARY)
    done = node.uninstall()
    stays = {path for path, what in done.items() if what.startswith("stays: a container")}
    assert stays == {"run/gpuslice/c1", f"run/gpuslice/.store/{node.old.name}"}
    assert grant.exists() and node.files.keys() == {"c1"}
    assert (node.old / names.FILE_LIBRARY).read_bytes() == OLD
    left = {node.old.name, releases.LOCK, f".{driver_root.COPIED[0]}.17"}
    assert set(os.listdir(node.places.store_dir)) == left
    (bundle / "config.json").unlink()
    bundle.rmdir()
    assert set(node.uninstall()) == stays | {"run/gpuslice/.store"}
    assert [each for each in node.there() if not each.startswith("containerd")] == LEFT


def test_what_a_process_has_mounted_stays_without_a_bundle(node: Node, tmp_path: Path) -> None:
    inside = tmp_path / "rootfs"
    (inside / ".gpuslice").mkdir(parents=True)
    for name in ("library", "preload"):
        (inside / name).touch()
    grants = node.places.run_dir
    with node.process(
        (grants / "c1", inside / ".gpuslice"),
        (grants / "c2/preload", inside / "preload"),
        (node.old / names.FILE_LIBRARY, inside / "library"),
    ):
        done = node.uninstall()
        stays = {path for path, what in done.items() if what.startswith("stays: a container")}
        assert stays == {
            "run/gpuslice/c1",
            "run/gpuslice/c2",
            f"run/gpuslice/.store/{node.old.name}",
        }
    assert set(node.uninstall()) == stays | {"run/gpuslice/.store"}


def test_a_process_that_ends_while_it_is_read_is_passed_over(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    process = tmp_path / str(pid)
    (process / "ns").mkdir(parents=True)
    (process / "root").symlink_to("/")
    (process / "ns/mnt").symlink_to("mnt:[1]")
    # The kernel answers EINVAL for a process that has ended.
    (process / "mountinfo").symlink_to(f"/proc/{pid}/mountinfo")
    try:
        assert used_by_containers(tmp_path / "containerd", tmp_path).paths == set()
    finally:
        os.waitpid(pid, 0)


def test_files_of_other_programs_stay(node: Node) -> None:
    node.copy.write_bytes(library(None))
    (node.places.run_dir / "foreign").mkdir()
    (node.places.run_dir / "foreign/file").touch()
    done = node.uninstall()
    assert done[COPY] == "stays: it is not gpuslice's library"
    assert done["run/gpuslice/foreign"] == "stays: Directory not empty"
    assert node.there() == sorted(
        [
            *LEFT,
            *(f"run/gpuslice{each}" for each in ("", "/.lock", "/foreign", "/foreign/file")),
            *("usr/local/vgpu", "usr/local/vgpu/.libvgpu.so.new", COPY),
        ]
    )
    (node.places.run_dir / "foreign/file").unlink()


# --- killed at each step

_KILLED: Final = -signal.SIGKILL


def kill_at(number: int) -> None:
    """Kill this process before its `number`-th change of the file system."""
    left = number

    def wrapped(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **more)

        return call

    for name in ("unlink", "rmdir"):
        setattr(os, name, wrapped(getattr(os, name)))
    tmpfs._check = wrapped(tmpfs._check)


def killed(node: Node, number: int) -> bool:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            kill_at(number)
            node.uninstall()
            code = 0
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, _KILLED)
    return code == _KILLED


def test_killed_at_each_step_the_next_run_completes_it(tmp_path: Path) -> None:
    for number in range(1, 100):
        node = Node(tmp_path / str(number))
        node.fill()
        was_killed = killed(node, number)
        node.uninstall()
        assert node.there() == LEFT, number
        if not was_killed:
            break
    assert number > 15


def test_a_copy_that_another_container_mounts_stays(node: Node, tmp_path: Path) -> None:
    copied = node.copy
    (tmp_path / "inside").touch()
    with node.process((copied, tmp_path / "inside")):
        assert node.uninstall()[COPY] == "stays: a container has it mounted"
    assert node.uninstall() == {COPY: "removed"}


def test_a_bundle_that_cannot_be_read_removes_nothing(node: Node) -> None:
    (node.bundle() / "config.json").write_text("[")
    before = node.there()
    with pytest.raises(OSError, match="is not as the runtime reads it"):
        node.uninstall()
    assert node.there() == before
