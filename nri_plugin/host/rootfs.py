"""Checks that a container's program will see, and later sees, the files that enforce the limit.

First the image is read from the host. Its preload files are needed because ours will hide them. Our
paths must not contain symbolic links, which a program in the container could remove. Then the view
of the container's process is read through /proc/PID/root: each of our mount points must show
exactly the file that we mounted. The program that is about to start is checked too (entrypoint.py).
No image can redirect a check: paths to our mount points are opened component by component, and
where links must be followed, rooted_open.py keeps them within the root.
Blocks, and may hang on a broken disk: run it in its own thread, under a deadline.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from gpuslice.contract import names
from gpuslice.contract.library_file import MACHINES
from nri_plugin.host import bundle, entrypoint, preload_list, rooted_open, selinux
from nri_plugin.host.descriptors import opened
from nri_plugin.host.rooted_open import kind
from nri_plugin.policy import mountinfo
from nri_plugin.policy.places import is_below
from nri_plugin.policy.plan import ContainerPlan
from nri_plugin.policy.refusals import Reason, Refused, raise_shortage, refused

_OPEN: Final = os.O_PATH | os.O_DIRECTORY
"""Flags for directories of the kernel and the runtime. They follow links like /proc/PID/root."""
_LOOK: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY: Final = _LOOK | os.O_DIRECTORY

Identity = tuple[int, int]
"""A file's device and inode."""


@dataclass(frozen=True, slots=True)
class Examination:
    """Results for a container that sees our mounts.

    preloads: libraries in the image's own preload files, by path of the file. out_of_reach: why no
    limit can be enforced in the entry point; "" if one can. waits_in: the runtime's program, which
    the container's process runs until it executes the entry point.
    """

    preloads: Mapping[str, Sequence[bytes]]
    out_of_reach: str
    waits_in: Identity


class Proof(Enum):
    """State of a container that was started. The values are texts for the log."""

    WAITS = "its program does not run yet"
    HOLDS = "limit in place"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Inspector:
    """Inspects this host's containers, whose IDs name their bundles.

    driver_seen: the method DriverRoot.seen. policy: SELinux's policy. forwarded: the driver's
    libraries are forwarders, as in strict mode. allowed: capabilities that the operator allows
    although they endanger the limit.
    """

    containerd_state: Path
    run_dir: Path
    store_dir: Path
    nri_socket: Path
    driver_seen: Callable[[str], Path]
    policy: selinux.Policy
    forwarded: bool
    allowed: AbstractSet[str]

    def examine(self, container_id: str, plan: ContainerPlan) -> Examination:
        """Raise Refused unless the container will see the files of its plan."""
        place = bundle.directory(self.containerd_state, container_id)
        try:
            with opened(place / "rootfs", _OPEN) as root:
                preloads = check_image(root)
            config = bundle.config(place)
            process = _init(place)
            self._check_labels(config.selinux_label, plan)
            self._check_capabilities(config, process)
            self._check_volumes(process, plan)
            with opened(process / "root", _OPEN) as root:
                self._check_view(root, plan)
                machine = MACHINES[os.uname().machine]
                why = entrypoint.out_of_reach(root, config.process, machine, self.forwarded)
            return Examination(preloads, why, _runs(process))
        except (OSError, ValueError) as error:
            raise_shortage(error)
            raise refused(Reason.ROOTFS_UNKNOWN, problem=error) from error

    def strong_beside(self, container_id: str) -> str:
        """Return the capability by which a container without a share can remove the limits of other
        containers whose processes it sees; "": it has none. Raises OSError."""
        place = bundle.directory(self.containerd_state, container_id)
        config = bundle.config(place)
        return self._loosening(config, bundle.init(place)) if config.sees_others else ""

    def prove(self, container_id: str, plan: ContainerPlan, waits_in: Identity | None) -> Proof:
        """Return the container's state. Raise Refused or OSError if its program does not see the
        files of its plan, or can remove them.

        waits_in: as in Examination; None: the entry point already runs. If the agent lacks memory
        or descriptors (is_shortage), Refused says nothing about the container.
        """
        place = bundle.directory(self.containerd_state, container_id)
        with ExitStack() as stack:
            try:
                # While this descriptor is open, a reused PID cannot refer to another process.
                init = bundle.init(place)
                process = Path("/proc/self/fd", str(stack.enter_context(opened(init, _OPEN))))
                if _runs(process) == waits_in:
                    return Proof.WAITS
            except OSError as error:
                raise_shortage(error)
                return Proof.ENDED
            try:
                self._check_volumes(process, plan)
                self._check_view(stack.enter_context(opened(process / "root", _OPEN)), plan)
                self._check_capabilities(bundle.config(place), process)
            except (OSError, Refused) as error:
                raise_shortage(error)
                try:
                    _runs(process)
                except OSError:
                    return Proof.ENDED
                raise
        return Proof.HOLDS

    def _check_view(self, root: int, plan: ContainerPlan) -> None:
        """Raise Refused unless the process sees each file of the plan at the file's path. root:
        descriptor of the process's root directory."""
        for path, source in plan.files.items():
            ours = _file(os.stat(self._source(path, source)))
            # Strict mode mounts forwarders outside our own directory. There an image's links are
            # followed, because the file that a program opens is what counts.
            with (_at if _is_own(path) else _behind)(root, path) as descriptor:
                if descriptor is None:
                    raise refused(Reason.VIEW_DIFFERS, path=path, problem="it does not exist")
                there = os.fstat(descriptor)
            if _file(there) != ours:
                problem = f"{kind(there.st_mode)} of {there.st_size} bytes"
                raise refused(Reason.VIEW_DIFFERS, path=path, problem=problem)

    def _source(self, path: str, source: str) -> Path:
        """Return the path at which this process sees the mount's source. Raises OSError."""
        is_driver = is_below(path, names.CONTAINER_DRIVER_DIR)
        return self.driver_seen(source) if is_driver else Path(source)

    def _check_labels(self, label: str, plan: ContainerPlan) -> None:
        """Raise Refused if SELinux denies processes with this label the use of our files."""
        for path, source in plan.files.items() if label else ():
            target = selinux.label_of(self._source(path, source))
            objection = self.policy.objection(label, target, *_use(path))
            if objection:
                raise refused(Reason.SELINUX, problem=objection)

    def _check_capabilities(self, config: bundle.Config, process: Path) -> None:
        """Raise Refused if a program in the container could remove a limit."""
        name = self._loosening(config, process)
        if name:
            raise refused(Reason.CAPABILITY, name=name, do=bundle.LOOSENING[name])

    def _loosening(self, config: bundle.Config, process: Path) -> str:
        host_pid = _file(os.stat(process / "ns/pid")) == _file(os.stat("/proc/self/ns/pid"))
        return bundle.loosening(config.capabilities, host_pid, self.allowed)

    def _check_volumes(self, process: Path, plan: ContainerPlan) -> None:
        """Raise Refused if a mount outside the plan exposes grants, the library or NRI's socket."""
        here = _mounts(Path("/proc/self"))
        places = (self.run_dir, self.store_dir, self.nri_socket)
        limits = (mountinfo.location_of(here, os.path.realpath(each)) for each in places)
        point = mountinfo.shown(_mounts(process), plan.files.keys(), mountinfo.Limits(*limits))
        if point:
            source, path = "(a host directory)", str(self.run_dir)
            raise refused(Reason.HOST_VOLUME, mount=point, source=source, path=path)


def check_image(root: int) -> Mapping[str, Sequence[bytes]]:
    """Return the libraries in the image's own preload files, by path of the file. Raises Refused.

    root: descriptor of the image's root on the host, where our mounts are not visible. An empty
    preload file is no error: the runtime itself creates one as the mount point.
    """
    preloads = {place: _own_preload(root, place) for place in names.CONTAINER_PRELOADS}
    with _at(root, names.CONTAINER_DIR) as descriptor:
        mode = stat.S_IFDIR if descriptor is None else os.fstat(descriptor).st_mode
    if not stat.S_ISDIR(mode):
        raise refused(Reason.IMAGE_PATH, what=kind(mode), path=names.CONTAINER_DIR)
    return {place: entries for place, entries in preloads.items() if entries}


def _own_preload(root: int, place: str) -> Sequence[bytes]:
    with _at(root, place) as descriptor:
        if descriptor is None:
            return ()
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise refused(Reason.IMAGE_PRELOAD, path=place, what=kind(status.st_mode))
        if status.st_size > preload_list.MAX_BYTES:
            raise refused(Reason.IMAGE_PRELOAD, path=place, what=f"{status.st_size} bytes")
        return preload_list.entries(rooted_open.read_all(descriptor, preload_list.MAX_BYTES))


def _init(place: Path) -> Path:
    """Return the /proc directory of the container's first process. runc's shim records its PID."""
    try:
        return bundle.init(place)
    except FileNotFoundError as error:
        raise refused(Reason.RUNTIME_SANDBOXED, path=place / "init.pid") from error


def _use(destination: str) -> tuple[AbstractSet[str], str]:
    """Return the SELinux permissions that processes need for our file, and the file's class."""
    if destination == names.CONTAINER_DIR:
        return frozenset({"search"}), "dir"
    if destination == f"{names.CONTAINER_DIR}/{names.FILE_REGION}":
        return selinux.WRITE, "file"
    is_data = _is_own(destination) and destination != names.CONTAINER_LIBRARY
    return (selinux.READ if is_data else selinux.EXECUTE), "file"


def _mounts(process: Path) -> Sequence[mountinfo.Line]:
    return list(mountinfo.parse((process / "mountinfo").read_text(errors="surrogateescape")))


def _runs(process: Path) -> Identity:
    return _file(os.stat(process / "exe"))


def _file(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino


def _is_own(destination: str) -> bool:
    own = (*names.CONTAINER_PRELOADS, names.CONTAINER_DIR)
    return destination in own or destination.startswith(f"{names.CONTAINER_DIR}/")


@contextmanager
def _behind(root: int, path: str) -> Iterator[int | None]:
    """Do the same as `_at`, but follow links."""
    with ExitStack() as stack:
        try:
            descriptor = stack.enter_context(rooted_open.lookup(root, path))
        except FileNotFoundError:
            descriptor = None
        yield descriptor


@contextmanager
def _at(root: int, path: str) -> Iterator[int | None]:
    """Yield an O_PATH descriptor of `path` under `root`, or None if nothing has this path. If it is
    a link, the descriptor is the link's own. A link among the parents raises Refused."""
    *parents, name = path.strip("/").split("/")
    current = os.dup(root)
    try:
        for depth, part in enumerate([*parents, name]):
            last = depth == len(parents)
            try:
                below = os.open(part, _LOOK if last else _DIRECTORY, dir_fd=current)
            except FileNotFoundError:
                yield None
                return
            except NotADirectoryError as error:
                what = kind(os.stat(part, dir_fd=current, follow_symlinks=False).st_mode)
                place = "/" + "/".join(parents[: depth + 1])
                raise refused(Reason.IMAGE_PATH, what=what, path=place) from error
            os.close(current)
            current = below
        yield current
    finally:
        os.close(current)
