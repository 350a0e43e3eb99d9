"""Restricts NVIDIA_DRIVER_CAPABILITIES to what the operator allows: the variable and the files.

Pure. Memory that Vulkan, OpenGL or the video engines allocate is not charged, so their libraries
and devices are injected only if the operator allows them. The table maps files to capabilities by
name. A file without a row counts as compute's, because a new driver's new file may be what CUDA
needs. Compute and utility are always injected, because a share needs them.
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
"""NVIDIA's names, in the order in which the variable is written."""
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
"""Sockets of the host's daemons. Compute needs neither of the first two, and they may vanish; the
third makes each program a client of the host's MPS."""
_HOOKS_FOR_NO_SHARE: Final = frozenset({"apply-cuda-memory-limits"})
"""Hooks by an argument. This one has the driver reserve memory that a variable of the container's
own names: the tenant's choice, in place of its grant."""


@dataclass(frozen=True, slots=True)
class DriverCapabilities:
    """given: what the container gets; cut: what it requested beyond, including unknown names."""

    given: AbstractSet[str]
    cut: Sequence[str]

    @property
    def text(self) -> str:
        """Return the variable's value."""
        return ",".join(each for each in CAPABILITIES if each in self.given)


def select(env: Sequence[str], allowed: AbstractSet[str]) -> DriverCapabilities:
    """Return what a container with the variables `env` gets of its request."""
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
    """Return the edits without files that belong only to other capabilities, and without what no
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
    """Return the capabilities any of which includes the file; empty: compute's and utility's."""
    return next((owners for pattern, owners in _FILES if pattern.search(path)), frozenset())
