"""The files of containers on this host: one small tmpfs per grant, under the run directory.

    RUN/KEY/           a tmpfs with a size limit, so that a tenant can fill only its own
      preload          content of /etc/ld.so.preload: our line, then the image's own lines
      preload-nix      the same for Nix' loader, which reads another file
      libvgpu.so       empty: mount point for the store's file
      plan.json        the container's plan (policy/plan.py), for a later comparison
      driver/SONAME    empty: mount point for the driver's real libraries in strict mode
      region           writable by all users in the container
      lease            when the container's programs may submit work; the arbiter writes it
      grant            written last: a directory with a valid grant is complete

Each of several containers that share a grant has its own preload.NAME, preload-nix.NAME and
plan.NAME.json. All calls block, and must run in one worker thread, which keeps their order. After a
crash at most a directory that no container uses is left; the agent's sweep removes it.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from gpuslice.contract import grant_file, lease_file, names, region_file
from gpuslice.contract.layout import whole
from gpuslice.contract.overhead import CODE_BYTES
from gpuslice.kube.log_lines import Line
from nri_plugin.host import preload_list, selinux, tmpfs
from nri_plugin.host.descriptors import opened, write
from nri_plugin.policy import plan as plans
from nri_plugin.policy.plan import ContainerPlan
from nri_plugin.policy.refusals import FilesError, Reason, raise_shortage, refused

_LOG: Final = logging.getLogger(__name__)

_NO_SIZES: Final[Mapping[str, int]] = MappingProxyType({})
_PRELOAD: Final = f"{names.CONTAINER_LIBRARY}\n".encode()
_MAX_INODES: Final = 256
_PAGE: Final = 4096
_SLACK_BYTES: Final = 128 * _PAGE
"""Additional size of each tmpfs, for its metadata and three files of each container that shares it.
A tenant can extend its region by at most this size."""
_PLAN: Final = "plan.json"
_LABELLED: Final = "selinux-label"
"""Name of a temporary directory of `label`. A sweep removes it after a kill of the agent."""


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The run directory. new_grant_id: the only source of randomness. now_ns: CLOCK_MONOTONIC.
    code_bytes, managed_free: attributes of new grants, as in grant_file.Gpu."""

    root: Path
    new_grant_id: Callable[[], int]
    now_ns: Callable[[], int] = time.monotonic_ns
    code_bytes: int = CODE_BYTES
    managed_free: bool = False

    def apply(self, plan: ContainerPlan, context_bytes: Mapping[str, int] = _NO_SIZES) -> None:
        """Create the files of the plan. context_bytes: the charge for a context by GPU UUID, where
        it is known.

        If the plan shares its directory, other containers may already use the directory. Then only
        this container's own files are written, and the grant must have the plan's shares. Raises
        FilesError, and then leaves no new directory behind.
        """
        assert plan.key is not None
        path = self.root / plan.key
        try:
            if plan.shared:
                _require_this_release(path)
            if plan.shared and (present := _read_grant(path)) is not None:
                # New files would be a second limit, in addition to that of running containers.
                granted = [(g.uuid, g.minor, g.limit_bytes, g.core_percent) for g in present.gpus]
                wanted = [(s.uuid, s.minor, s.memory_bytes, s.core_percent) for s in plan.shares]
                if granted != wanted:
                    raise FilesError(
                        "the pod's allocation is not the one that its running containers have"
                    )
                _write_own(path, plan)
                return
            self._empty_directory(path)
            try:
                self._fill(path, plan, context_bytes)
            except BaseException:
                tmpfs.clear(path)
                raise
        except OSError as error:
            raise FilesError(f"{error.filename or path}: {error.strerror}") from error

    def add_preloads(self, plan: ContainerPlan, preloads: Mapping[str, Sequence[bytes]]) -> None:
        """Append the image's own libraries to our preload files. preloads: libraries by path of the
        preload file in the container. The files are mounted, so they are written in place. No
        program reads them yet. Idempotent. Raises FilesError, and Refused for a list that is too
        long."""
        for place, entries in preloads.items():
            path = self.root / (plan.key or "") / plan.preloads[place]
            whole = preload_list.merged(_PRELOAD, entries)
            if len(whole) > preload_list.MAX_BYTES:
                raise refused(
                    Reason.IMAGE_PRELOAD_LONG,
                    path=place,
                    size=len(whole),
                    most=preload_list.MAX_BYTES,
                )
            try:
                with path.open("r+b", buffering=0) as file:
                    file.write(whole)
                    file.truncate()
            except OSError as error:
                raise FilesError(f"{path}: {error.strerror}") from error

    def plan(self, key: str, container: str) -> ContainerPlan | None:
        """Return the container's stored plan, or None. Raises Refused if the agent lacks memory or
        descriptors (raise_shortage)."""
        for name in (_plan(container), _PLAN):
            try:
                data = (self.root / key / name).read_bytes()
            except OSError as error:
                raise_shortage(error)
                continue
            if (plan := plans.decode(data, key, container)) is not None:
                return plan
        return None

    def mounted(self) -> Collection[str] | None:
        """Return the paths of the host's files that the plans of all containers mount; None if the
        plan of any container cannot be read."""
        sources: set[str] = set()
        for key in self.keys():
            directory = self.root / key
            stored = [*directory.glob("plan*.json")]
            if not stored and (directory / names.FILE_GRANT).exists():
                return None
            for file in stored:
                try:
                    plan = plans.decode(file.read_bytes(), key, "")
                except OSError:
                    return None
                if plan is None:
                    return None
                sources.update(plan.files.values())
        return sources

    def remove(self, key: str, own: str | None = None) -> None:
        """Remove the directory of `key`. Idempotent. Programs keep files that they have mapped.
        own: remove only this container's own files, because others use the directory."""
        path = self.root / key
        try:
            if own is None:
                tmpfs.clear(path)
            else:
                for file in path.glob(f"*.{own}*"):
                    file.unlink(missing_ok=True)
        except OSError as error:
            raise FilesError(f"{error.filename or path}: {error.strerror}") from error

    def label(self) -> str:
        """Return the SELinux label that a container's new files get. Raises OSError."""
        path = self.root / _LABELLED
        self._empty_directory(path)
        try:
            tmpfs.mount(path, _PAGE, 1)
            return selinux.label_of(path)
        finally:
            tmpfs.clear(path)

    def grants(self, keys: Iterable[str]) -> Mapping[str, grant_file.Grant]:
        """Return the grants by key. Keys whose directories are incomplete are omitted. Raises
        Refused if the agent lacks memory or descriptors."""
        grants = {}
        for key in keys:
            try:
                grant = _read_grant(self.root / key)
            except OSError as error:
                raise_shortage(error)
                _LOG.warning(Line("grant cannot be read", key=key, error=error))
                continue
            if grant is not None:
                grants[key] = grant
        return grants

    def keys(self) -> AbstractSet[str]:
        """Return the keys of all directories. Names with a leading dot are the agent's own."""
        try:
            with os.scandir(self.root) as entries:
                return {
                    entry.name
                    for entry in entries
                    if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)
                }
        except FileNotFoundError:
            return frozenset()

    def _empty_directory(self, path: Path) -> None:
        try:
            path.mkdir()
            return
        except FileExistsError:
            tmpfs.clear(path)
        except (FileNotFoundError, NotADirectoryError):
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.mkdir()

    def _fill(self, path: Path, plan: ContainerPlan, context_bytes: Mapping[str, int]) -> None:
        grant_id, count = self.new_grant_id(), len(plan.shares)
        tmpfs.mount(path, _size_bytes(count), _MAX_INODES)
        (path / names.DIR_DRIVER).mkdir(mode=0o755)
        gpus = tuple(
            grant_file.Gpu(
                share.uuid,
                share.memory_bytes,
                share.core_percent,
                share.minor,
                context_bytes=context_bytes.get(share.uuid, names.CONTEXT_BYTES_ASSUMED),
                code_bytes=self.code_bytes,
                managed_free=self.managed_free,
                policy=plan.policy,
            )
            for share in plan.shares
        )
        grant = grant_file.fresh(grant_file.Grant(grant_id, gpus))
        limited = any(gpu.core_limited for gpu in gpus)
        region = region_file.header(count, grant_id, self.now_ns())
        for name, mode, data in (
            *((name, 0o444, _PRELOAD) for name in names.CONTAINER_PRELOADS.values()),
            (names.FILE_LIBRARY, 0o444, b""),
            *((f"{names.DIR_DRIVER}/{soname}", 0o444, b"") for soname in names.DRIVER_SONAMES),
            (names.FILE_REGION, 0o666, region),
            (names.FILE_LEASE, 0o444, lease_file.fresh(count, launches_checked=limited)),
        ):
            size = region_file.Geometry(count).file_bytes if name == names.FILE_REGION else 0
            _write(f"{path}/{name}", mode, data, size)
        _write_own(path, plan)
        _write(f"{path}/{names.FILE_GRANT}", 0o444, grant)


def _plan(container: str) -> str:
    return f"plan.{container}.json"


def _size_bytes(gpu_count: int) -> int:
    fixed = (region_file.Geometry(gpu_count).file_bytes, grant_file.FILE_BYTES)
    files = (*fixed, lease_file.FILE_BYTES, *(len(_PRELOAD) for _ in names.CONTAINER_PRELOADS))
    return sum(-(-size // _PAGE) for size in files) * _PAGE + _SLACK_BYTES


def _write(path: str, mode: int, data: bytes, size_bytes: int = 0) -> None:
    """Create a file. size_bytes: if not 0, zeros follow `data` up to this size."""
    with opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as descriptor:
        write(descriptor, data)
        if size_bytes:
            os.posix_fallocate(descriptor, 0, size_bytes)
        os.fchmod(descriptor, mode)


def _write_own(path: Path, plan: ContainerPlan) -> None:
    """Write a container's plan. If it shares the directory, also write its preload lists with only
    our line, because an earlier container of this name may have added lines."""
    own = {name: _PRELOAD for name in plan.preloads.values()} if plan.shared else {}
    own[_plan(plan.container) if plan.shared else _PLAN] = plans.encode(plan)
    for name, data in own.items():
        with opened(path / name, os.O_WRONLY | os.O_CREAT) as descriptor:
            write(descriptor, data)
            os.ftruncate(descriptor, len(data))
            os.fchmod(descriptor, 0o444)


def _read_grant(path: Path) -> grant_file.Grant | None:
    """Return the grant of a complete directory, else None. Only an agent can write the file."""
    if not os.path.ismount(path):
        return None
    try:
        return grant_file.decode((path / names.FILE_GRANT).read_bytes())
    except FileNotFoundError:
        return None


_VERSIONS: Final = (
    (names.FILE_GRANT, grant_file.HEAD, grant_file.MAGIC, grant_file.VERSION),
    (names.FILE_REGION, region_file.HEADER, region_file.MAGIC, region_file.VERSION),
)


def _require_this_release(path: Path) -> None:
    """Raise FilesError if the files have versions of another release, which our library refuses. A
    broken region is no error here: the tenant may have broken it, and the library reports it."""
    for name, start, magic, ours in _VERSIONS:
        try:
            with (path / name).open("rb", buffering=0) as file:
                data = file.read(start.size)
        except FileNotFoundError:
            continue
        head = start.unpack(data) if len(data) == start.size else {}
        version = whole(head["version"]) if head.get("magic") == magic else None
        if version not in (None, ours):
            raise FilesError(
                f"its running containers have a {name} of version {version}, of another release of"
                " the agent: delete the pod to recreate it"
            )
