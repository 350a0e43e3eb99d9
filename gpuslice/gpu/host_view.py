"""The place of the host's files. A pod sees them below the mount of the host's root."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuslice.gpu.driver_root import resolve

_ROOT: Final = Path("/")


@dataclass(frozen=True, slots=True)
class HostView:
    """root: where the host's root directory is seen; / outside of a pod."""

    root: Path = _ROOT

    def seen(self, path: Path) -> Path:
        """Return where the host's file of that path is seen, with links resolved as the host
        resolves them; it need not exist. A loop of links is left to its reader."""
        if self.root == _ROOT:
            return path
        try:
            return resolve(self.root, str(path))
        except OSError:
            return self.root / path.relative_to(_ROOT)

    def on_host(self, path: Path) -> Path:
        """Return the host's path of what is seen there."""
        if self.root != _ROOT and path.is_relative_to(self.root):
            return _ROOT / path.relative_to(self.root)
        return path
