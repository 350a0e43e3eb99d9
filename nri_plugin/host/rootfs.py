"""Checks that a container's program will see, and sees, the files that enforce the limit.

First the image is read from the host: its own preload files, because ours cover them, and symbolic
links in our paths, which a program inside could remove. Then the process's view, through
/proc/PID/root: each of our mount points must show exactly the file that we mounted. The program
that is about to start is checked too (entrypoint.py). No image can redirect a check: paths to our
mount points are opened component by component, and rooted_open.py follows links where it must be.
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
from nri_plugin.host import bundle, entrypoint, rooted_open, selinux
from nri_plugin.host.descriptors import opened
from nri_plugin.host.rooted_open import kind
from nri_plugin.policy import mountinfo, preload_list
from nri_plugin.policy.places import is_below
from nri_plugin.policy.plan import ContainerPlan
from nri_plugin.policy.refusals import Reason, Refused, raise_shortage, refused

_OPEN: Final = os.O_PATH | os.O_DIRECTORY
"""Without O_NOFOLLOW: /proc/PID/root is a link to follow; the other paths are the runtime's own."""
_LOOK: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY: Final = _LOOK | os.O_DIRECTORY

Identity = tuple[int, int]
"""A file's device and inode."""


@dataclass(frozen=True, slots=True)
class Examination:
    """Results for a container that sees our mounts.

    preloads: by the path of a preload file, the names in the image's own. out_of_reach: why no
    limit can be enforced in the entry point; "" if one can. waits_in: the runtime's program, which
    will exec the entry point.
    """

    preloads: Mapping[str, Sequence[bytes]]
    out_of_reach: str
    waits_in: Identity


class Proof(Enum):
    """State of a container that was started; values are the log's text."""

    WAITS = "its program does not run yet"
    HOLDS = "limit in place"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Inspector:
    """Inspects this host's containers, which it has by the names of their bundles.

    driver_seen: where the driver's file of that host path is seen (DriverRoot.seen), because in a
    pod the driver lies elsewhere than on the host. policy: SELinux's. forwarded: the driver's
    libraries are forwarders, as in strict mode. allowed: capabilities that the operator allows
    although they endanger the limit.
    """

    containerd_state: Path
    run_dir: Path
    store_dir: Path
    nri_socket: Path
    driver_seen: Callable[[str], Path]
    policy: selinux.Policy
    forwarded: bool = False
    allowed: AbstractSet[str] = frozenset()

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
        """Return the capability by which a container without a share can remove the limits of
        containers whose processes it sees; "": none. Raises OSError."""
        place = bundle.directory(self.containerd_state, container_id)
        config = bundle.config(place)
        return self._loosening(config, bundle.init(place)) if config.sees_others else ""

    def prove(self, container_id: str, plan: ContainerPlan, waits_in: Identity | None) -> Proof:
        """Raise Refused or OSError if the container's program does not see the files of its plan,
        or can remove them.

        waits_in: what its process ran before its start, as in Examination; None: it has been
        started. A shortage is Refused, and says nothing about the container.
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
        """Raise Refused unless each file of the plan is what the process sees at its path. `root`:
        descriptor of the process's own root; sources are the host's."""
        for path, source in plan.files.items():
            ours = _file(os.stat(self._source(path, source)))
            # Outside our own directory, where strict mode mounts forwarders, an image's links are
            # followed, because the file that a program opens is what counts.
            with (_at if _is_own(path) else _behind)(root, path) as descriptor:
                if descriptor is None:
                    raise refused(Reason.VIEW_DIFFERS, path=path, problem="it does not exist")
                there = os.fstat(descriptor)
            if _file(there) != ours:
                problem = f"{kind(there.st_mode)} of {there.st_size} bytes"
                raise refused(Reason.VIEW_DIFFERS, path=path, problem=problem)

    def _source(self, path: str, source: str) -> Path:
        """Return where the file's source is seen here. Raises OSError."""
        is_driver = is_below(path, names.CONTAINER_DRIVER_DIR)
        return self.driver_seen(source) if is_driver else Path(source)

    def _check_labels(self, label: str, plan: ContainerPlan) -> None:
        """Raise Refused if SELinux keeps processes of that label from our files."""
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
        """Raise Refused if a mount of the process other than the plan's exposes the host's
        grants."""
        here = _mounts(Path("/proc/self"))
        places = (self.run_dir, self.store_dir, self.nri_socket)
        limits = (mountinfo.location_of(here, os.path.realpath(each)) for each in places)
        point = mountinfo.shown(_mounts(process), plan.files.keys(), mountinfo.Limits(*limits))
        if point:
            source, path = "(a host directory)", str(self.run_dir)
            raise refused(Reason.HOST_VOLUME, mount=point, source=source, path=path)


def check_image(root: int) -> Mapping[str, Sequence[bytes]]:
    """Return the names in the image's own preload files, by path; raises Refused.

    `root`: descriptor of the image's root on the host, where our mounts are not visible. An empty
    regular file is the mount point that the runtime itself creates.
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
    """Return the /proc directory of the container's first process, as runc's shim has it."""
    try:
        return bundle.init(place)
    except FileNotFoundError as error:
        raise refused(Reason.RUNTIME_SANDBOXED, path=place / "init.pid") from error


def _use(destination: str) -> tuple[AbstractSet[str], str]:
    """Return what a container's processes do with our file there, and its class."""
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
    """Do the same as `_at`, with links followed."""
    with ExitStack() as stack:
        try:
            descriptor = stack.enter_context(rooted_open.lookup(root, path))
        except FileNotFoundError:
            descriptor = None
        yield descriptor


@contextmanager
def _at(root: int, path: str) -> Iterator[int | None]:
    """Yield an O_PATH descriptor of `path` itself under `root`; None if it does not exist. A link
    among the parents raises Refused; if the path ends in a link, the descriptor is the link's."""
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
