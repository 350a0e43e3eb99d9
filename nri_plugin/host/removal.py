"""Removes from this host what gpuslice put there, except what containers still use.

    RUN/KEY/           the files of a grant that no container mounts
    RUN/.store/SHA256/ a release of the library that no container mounts; then the empty store
    KUBELET/plugins/gpuslice.io/, CDI/gpuslice.io-claim_UID.json  what was prepared for claims
    CDI/gpuslice-generated.json, and RUN/.store/nvidia-cdi-hook, the program of its hooks
    /usr/local/vgpu/libvgpu.so  the distributor's copy, if it is gpuslice's library

A container's bundle and the mounts of its processes show what the container uses. If the removal is
killed, it can be run again. All functions block.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuslice.contract import library_file, names
from gpuslice.contract.library_file import LibraryFileError
from nri_plugin.gpu import record
from nri_plugin.host import bundle, cdi_generator, driver_root, lock, releases, tmpfs
from nri_plugin.host.files import RunDirectory
from nri_plugin.policy import mountinfo
from nri_plugin.settings import Settings

_DELETED: Final = "//deleted"
"""Suffix in mountinfo of a mount's root that has been deleted."""
_NO_MOUNTS: Final = {errno.ENOENT, errno.ESRCH, errno.EINVAL, errno.EACCES, errno.EPERM}
"""Errors of /proc/PID for processes without a container's mounts. The process has ended (ENOENT,
ESRCH), is ending (EINVAL), or is in another user namespace than this runtime (EACCES, EPERM)."""
_PROC: Final = Path("/proc")
_WRITTEN: Final = f".{names.FILE_LIBRARY}."
"""Prefix of the names of partly written files next to the distributor's copy."""
_STAYS: Final = "stays: a container has it mounted"


@dataclass(frozen=True, slots=True)
class Used:
    """What containers have mounted. paths: mounted files and directories, from bundles as host
    paths, from the kernel as paths in their file system. devices: MAJOR:MINOR of grants' tmpfs."""

    paths: AbstractSet[str]
    devices: AbstractSet[str]


@dataclass(frozen=True, slots=True)
class Removal:
    """Removes gpuslice's files. done: called with each path, and "removed" or why it stays.
    claims: the paths of what was prepared for claims."""

    settings: Settings
    done: Callable[[Path, str], None]
    dry_run: bool
    claims: Iterable[Path] = ()

    def run(self) -> None:
        """Remove everything. No agent may run meanwhile. Raises OSError and StoreError."""
        used = used_by_containers(self.settings.containerd_state)
        self._grants(used)
        self._specs()
        store, left = self.settings.store_dir, False
        if os.path.ismount(store):
            with nullcontext() if self.dry_run else releases.locked(store):
                left = self._releases(used.paths)
        if store.is_dir() and not left:
            self._remove(store, tmpfs.clear)
        copy = self.settings.view.seen(Path(names.HOST_LIBRARY))
        self._copy(copy, used.paths)
        copies = copy.parent
        self._empty(copies, *_partial(copies, _WRITTEN))
        self._empty(self.settings.run_dir, lock.FILE, record.FILE, record.NEW)

    # --- parts

    def _grants(self, used: Used) -> None:
        for key in sorted(RunDirectory(self.settings.run_dir, lambda: 0).keys()):
            path = self.settings.run_dir / key
            number = path.stat().st_dev
            device = f"{os.major(number)}:{os.minor(number)}"
            in_bundle = any(Path(each).is_relative_to(path) for each in used.paths)
            self._remove(path, tmpfs.clear, stays=in_bundle or device in used.devices)

    def _specs(self) -> None:
        private = self.settings.run_dir / ".cdi"
        specs = (each / cdi_generator.FILE for each in (*self.settings.cdi_dirs, private))
        # No container uses these files after its creation. Therefore they are always removed.
        programs = (self.settings.store_dir / each for each in driver_root.COPIED)
        for path in (*specs, *programs):
            if path.exists():
                self._remove(path, os.unlink)
        for path in self.claims:
            self._remove(path, shutil.rmtree if path.is_dir() else os.unlink)
        self._empty(private, *_partial(private, "."))

    def _releases(self, used: AbstractSet[str]) -> bool:
        """Remove unused releases. Return whether any release stays."""
        mounted = {Path(each).parent.name for each in used}
        store = self.settings.store_dir
        present = sorted(each for each in store.iterdir() if releases.is_release(each.name))
        for release in present:
            self._remove(release, releases.remove, stays=release.name in mounted)
        return any(each.exists() and each.name in mounted for each in present)

    def _copy(self, path: Path, used: AbstractSet[str]) -> None:
        try:
            contract = library_file.parse(path.read_bytes()).contract
        except FileNotFoundError:
            return
        except LibraryFileError:
            contract = None
        if contract is None:
            self.done(path, "stays: it is not gpuslice's library")
            return
        # Koordinator's and HAMi's containers mount the copy. The kernel reports only the end of the
        # path, from the root of the copy's file system.
        end = f"/{names.FILE_LIBRARY}"
        mounted = any(str(path).endswith(each) and each.endswith(end) for each in used)
        self._remove(path, os.unlink, stays=mounted)

    # --- steps

    def _remove(self, path: Path, how: Callable[[Path], object], stays: bool = False) -> None:
        if stays:
            self.done(path, _STAYS)
            return
        try:
            if not self.dry_run:
                how(path)
        except OSError as error:
            self.done(path, f"stays: {error.strerror}")
        else:
            self.done(path, "removed (dry run)" if self.dry_run else "removed")

    def _empty(self, directory: Path, *last: str) -> None:
        """Remove the directory and the files `last` in it, unless it contains other files."""
        if self.dry_run or not directory.is_dir():
            return
        if not {each.name for each in directory.iterdir()} <= {*last}:
            return
        for name in last:
            (directory / name).unlink(missing_ok=True)
        # In a pod the run directory is a mount point and cannot be removed: use the host's path.
        for path in (directory, self.settings.host_root / directory.relative_to("/")):
            with suppress(OSError):
                path.rmdir()


def used_by_containers(containerd_state: Path, proc: Path = _PROC) -> Used:
    """Return what containers have mounted, according to their bundles and to the mount tables of
    all processes. Raises OSError."""
    paths, devices, trees = set[str](), set[str](), set[object]()
    for path in bundle.all_of(containerd_state):
        with suppress(FileNotFoundError):  # the bundle was removed meanwhile
            paths.update(bundle.config(path).sources)
    for process in proc.glob("[0-9]*"):
        try:
            root = (process / "root").stat()
            # Processes with the same mount namespace and root have the same mount table.
            tree = (os.readlink(process / "ns/mnt"), root.st_dev, root.st_ino)
            lines = () if tree in trees else mountinfo.parse((process / "mountinfo").read_text())
        except OSError as error:
            if error.errno not in _NO_MOUNTS:
                raise
            continue
        trees.add(tree)
        for line in lines:
            paths.add(line.root.removesuffix(_DELETED))
            inside = line.root != "/" or line.point.endswith(names.CONTAINER_DIR)
            if inside and (line.type, line.source) == ("tmpfs", names.PLUGIN_NAME):
                devices.add(line.device)
    return Used(paths, devices)


def _partial(directory: Path, *prefixes: str) -> Iterable[str]:
    """Yield the names of files that a killed writer left. They have one of the prefixes."""
    if directory.is_dir():
        yield from (each.name for each in directory.iterdir() if each.name.startswith(prefixes))
