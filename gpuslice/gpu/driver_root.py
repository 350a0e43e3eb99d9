"""Finds the driver root, the directory of the driver's files on the host, and loads its libraries.

GPU Operator's validator writes the root into a file. Without this file, the root is the first of
ROOTS that contains NVML's library. Every call searches again, because the driver may appear late.

In a pod the libraries are the host's, below a mount that $GPUSLICE_HOST_ROOT names. We load a
library by its full path below the mount; pynvml's own dlopen then returns the loaded library.
LD_LIBRARY_PATH would also select the host's libc, which need not fit this process.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpuslice.ffi import cuda_ffi
from gpuslice.gpu import library_cache

VARIABLE: Final = "GPUSLICE_DRIVER_ROOT"
"""Variable with the driver root's path on the host, where the operator has set it."""
HOST_VARIABLE: Final = "GPUSLICE_HOST_ROOT"
"""Variable with the path at which the agent and its children see the host's root directory."""
NVML: Final = "libnvidia-ml.so.1"
CUDA: Final = "libcuda.so.1"
DIRECTORIES: Final = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib/aarch64-linux-gnu/nvidia/current",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "lib/x86_64-linux-gnu/nvidia/current",
    "lib/aarch64-linux-gnu/nvidia/current",
)
"""Directories that nvidia-ctk searches, in its order, before the root's ld.so.cache."""
FURTHER_DIRECTORIES: Final = (
    "usr/lib",
    "usr/lib/wsl/lib",
    "usr/local/nvidia/lib64",
    "usr/lib/nvidia/tesla",
    "run/opengl-driver/lib",
    "usr/local/lib",
)
"""Directories searched after ld.so.cache: those of Arch, WSL, container images of drivers,
Bottlerocket, NixOS and Talos."""
READY: Final = "/run/nvidia/validations/driver-ready"
"""File that GPU Operator's validator writes once the driver works."""
_READY_BYTES: Final = 4096
ROOTS: Final = (
    "/run/nvidia/driver",
    "/home/kubernetes/bin/nvidia",
    "/var/lib/nvidia",
    "/opt/nvidia/current",
    "/",
    "/usr/local",
)
"""Roots of GPU Operator's driver container, GKE's node images, GKE's public installer on Ubuntu,
Flatcar, a distribution's package, and Talos. A directory that holds only a driver precedes /: the
loader cache of / may list the same libraries, but / lacks the driver's programs."""
_ROOT: Final = Path("/")
_MAX_LINKS: Final = 40
"""Linux follows at most this many links in a path."""


class NotFoundError(Exception):
    """The library is not found. The text lists the directories searched, and the setting."""


_loaded: Final[list[Any]] = []
"""Keeps every loaded library: cffi would unload it with its last reference."""


def load(soname: str) -> Any:
    """Return the driver's library, with the functions of gpuslice/ffi/cuda.h. Raises NotFoundError,
    or OSError for a library that cannot be loaded."""
    root = seen_root()
    _loaded.append(cuda_ffi.ffi.dlopen(str(find(root, soname)) if root else soname))
    return _loaded[-1]


def seen_root() -> Path | None:
    """Return the driver root's path as this process sees it. None: the driver's files are below /,
    where the loader finds them. Raises NotFoundError."""
    host, chosen = os.environ.get(HOST_VARIABLE), os.environ.get(VARIABLE)
    if not host and not chosen:
        return None
    seen = Path(host or "/")
    root = Path(chosen) if chosen else locate(seen)
    if root is None and seen != _ROOT:
        raise NotFoundError(
            f"driver root: must contain {NVML}: none of {', '.join(ROOTS)} of the host does, in"
            f" {', '.join(DIRECTORIES)}; install the driver, or set --driver-root to the host's"
            " directory that holds its files"
        )
    resolved = resolve(seen, str(root or "/"))
    return None if resolved == _ROOT else resolved


def locate(host: Path) -> Path | None:
    """Return the driver root's path on the host, or None if no driver is found. host: path at which
    this process sees the host's root directory."""
    written = ready(_text(host))
    for root in (*([written] if written else []), *ROOTS):
        with contextlib.suppress(NotFoundError, OSError):
            find(resolve(host, root), NVML)
            return Path(root)
    return None


def ready(text: str) -> str:
    """Return the driver root in the validator's file, or "". text: the file's content. Pure."""
    for line in text.splitlines():
        name, _, value = line.strip().partition("=")
        root = value.strip("\"'")
        if name == "NVIDIA_DRIVER_ROOT" and root.startswith("/") and ".." not in root.split("/"):
            return root
    return ""


def _text(host: Path) -> str:
    try:
        with resolve(host, READY).open("rb") as file:
            return file.read(_READY_BYTES).decode(errors="replace")
    except OSError:
        return ""


def find(root: Path, soname: str) -> Path:
    """Return the library's path, with all links resolved. Raises NotFoundError."""
    for path in _candidates(root, soname) if root.is_dir() else ():
        try:
            library = resolve(root, path)
        except OSError:
            continue
        if library.is_file():
            return library
    raise NotFoundError(
        f"driver root: invalid value {root}: must contain {soname} in its {library_cache.PLACE}, or"
        f" in one of {', '.join((*DIRECTORIES, *FURTHER_DIRECTORIES))}; install the driver and run"
        " ldconfig, or set --driver-root to the host's directory that holds the driver's files"
    )


def _candidates(root: Path, soname: str) -> Iterator[str]:
    yield from (f"/{directory}/{soname}" for directory in DIRECTORIES)
    with contextlib.suppress(OSError):
        cache = resolve(root, f"/{library_cache.PLACE}").read_bytes()
        yield from library_cache.find(cache, soname)
    yield from (f"/{directory}/{soname}" for directory in FURTHER_DIRECTORIES)


def resolve(root: Path, path: str) -> Path:
    """Return `path` below `root` with all links resolved as if `root` were `/`. So absolute links,
    for example of Debian's alternatives, stay below it. Raises OSError for a loop of links."""
    below: list[str] = []
    left, links, exists = _reversed_parts(path), 0, True
    while left:
        part = left.pop()
        if part == "..":
            below, exists = below[:-1], True
            continue
        below.append(part)
        target = _link(os.path.join(root, *below)) if exists else None
        exists = exists and target is not None
        if target:
            links += 1
            if links > _MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            below = [] if target.startswith("/") else below[:-1]
            left += _reversed_parts(target)
    return root.joinpath(*below)


def _reversed_parts(path: str) -> list[str]:
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _link(path: str) -> str | None:
    """Return the link's target. "": the path is not a link. None: the path does not exist."""
    try:
        return os.readlink(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return ""


@dataclass(frozen=True, slots=True)
class HostView:
    """Converts paths of the host. root: where this process sees the host's /; / outside a pod."""

    root: Path = _ROOT

    def seen(self, path: Path) -> Path:
        """Return where this process sees the host's `path`, which need not exist. Links are
        resolved as on the host. A loop of links stays in the path: reading it then fails."""
        if self.root == _ROOT:
            return path
        try:
            return resolve(self.root, str(path))
        except OSError:
            return self.root / path.relative_to(_ROOT)

    def on_host(self, path: Path) -> Path:
        """Return the host's path of the file that this process sees at `path`."""
        if self.root != _ROOT and path.is_relative_to(self.root):
            return _ROOT / path.relative_to(self.root)
        return path
