"""Restricts NVIDIA_DRIVER_CAPABILITIES, and the injected files, to what the operator allows.

Pure. The library does not charge memory that Vulkan, OpenGL or the video engines allocate.
Therefore their files are injected only if the operator allows it. A table maps each file's name to
capabilities. A file that the table does not have is always injected, because CUDA may need a new
file of a new driver. Compute and utility are always injected, because a share needs them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final

from gpuslice.contract import names
from nri_plugin.policy.model import Edits

CAPABILITIES: Final = ("compute", "utility", "video", "graphics", "display", "ngx", "compat32")
"""NVIDIA's names of all capabilities, in the order in which the agent writes them."""
ALWAYS: Final = frozenset({"compute", "utility"})
ALL: Final = "all"

_GRAPHICS: Final = frozenset({"graphics", "display"})

_FILES: Final[Sequence[tuple[re.Pattern[str], AbstractSet[str]]]] = tuple(
    (re.compile(pattern), capabilities)
    for pattern, capabilities in (
        (r"/usr/lib32/|/lib/i386-linux-gnu/", frozenset({"compat32"})),
        (r"/(libnvcuvid|libnvidia-encode|libnvidia-opticalflow)\.so", frozenset({"video"})),
        (r"/libvdpau_nvidia\.so", frozenset({"video"})),
        (r"/(libnvidia-ngx\.so|nvidia-ngx-updater|_?nvngx)", frozenset({"ngx"})),
        (r"/lib(GLX|EGL|GLESv1_CM|GLESv2)_nvidia\.so", _GRAPHICS),
        (r"/libnvidia-(eglcore|glcore|glsi|tls|rtcore|glvkspirv|cbl|fbc|ifr)\.so", _GRAPHICS),
        (r"/libnvidia-(egl-\w+|vksc-core|present|wayland-client|gtk\d*)\.so", _GRAPHICS),
        (r"/(libnvoptix\.so|nvoptix\.bin)", _GRAPHICS),
        (r"/(vulkan|vulkansc|glvnd|egl)/", _GRAPHICS),
        (r"/gbm/|/xorg/|/nvidia-drm_gbm\.so", _GRAPHICS),
        (r"^/dev/(dri/|nvidia-modeset$)", _GRAPHICS),
    )
)
_LIBRARY: Final = re.compile(r"\.so(\.|$)")
_FOR_NO_SHARE: Final = re.compile(r"/nvidia-(persistenced|fabricmanager)/|/nvidia-mps(/|$)")
"""Sockets of the host's daemons, which are not mounted. Compute does not need the sockets of
nvidia-persistenced and fabricmanager, and the host may remove them. Through the socket of
nvidia-mps a program would become a client of the host's MPS."""
_HOOKS_FOR_NO_SHARE: Final = frozenset({"apply-cuda-memory-limits"})
"""Arguments of hooks that are not run. `apply-cuda-memory-limits` would make the driver reserve the
memory that a variable of the container names, instead of the grant."""


@dataclass(frozen=True, slots=True)
class DriverCapabilities:
    """given: the capabilities that the container gets. cut: the capabilities that it requested and
    does not get, including unknown names."""

    given: AbstractSet[str]
    cut: Sequence[str]

    @property
    def text(self) -> str:
        """Return the value of NVIDIA_DRIVER_CAPABILITIES."""
        return ",".join(each for each in CAPABILITIES if each in self.given)


def select(env: Sequence[str], allowed: AbstractSet[str]) -> DriverCapabilities:
    """Return which of the capabilities that `env` requests the container gets."""
    requested: AbstractSet[str] = ALWAYS
    for line in env:
        key, _, value = line.partition("=")
        if key == names.ENV_DRIVER_CAPABILITIES:
            requested = {each for part in value.split(",") if (each := part.strip())} or ALWAYS
    if ALL in requested:
        requested = frozenset(CAPABILITIES)
    given = ALWAYS | (requested & allowed & frozenset(CAPABILITIES))
    return DriverCapabilities(given, tuple(sorted(requested - given)))


def cut(edits: Edits, given: AbstractSet[str]) -> Edits:
    """Remove the files of capabilities that are not given, and the sockets and hooks that no
    container with a share may have."""
    mounts = (mount for mount in edits.mounts if _within(mount.destination, given))
    return replace(
        edits,
        mounts=tuple(each for each in mounts if not _FOR_NO_SHARE.search(each.destination)),
        devices=tuple(device for device in edits.devices if _within(device.path, given)),
        hooks=tuple(hook for hook in edits.hooks if not _HOOKS_FOR_NO_SHARE & {*hook.args}),
    )


def is_needed(path: str) -> bool:
    """Whether the file is a library that compute and utility may load."""
    return _LIBRARY.search(path) is not None and not _owners(path)


def _within(path: str, given: AbstractSet[str]) -> bool:
    owners = _owners(path)
    return not owners or bool(owners & given)


def _owners(path: str) -> AbstractSet[str]:
    """Return the capabilities that need the file. Empty: the file is always injected."""
    return next((owners for pattern, owners in _FILES if pattern.search(path)), frozenset())
