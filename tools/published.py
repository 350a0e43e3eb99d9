"""One program of a published Go module: helm (helm.py) and nvidia-ctk (images/) are built this way.

Built once into the cache, under name and version. Standard library only: setup runs it.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.building import build, cache_dir, runs

_STRIPPED: Final = "-s -w"


@dataclass(frozen=True, slots=True)
class Published:
    name: str
    version: str
    module: str
    package: str
    """The program's directory in the module."""
    version_variable: str
    """The Go variable that holds the version that the program prints."""
    free_bytes_wanted: int
    """For modules, Go's build cache and the program: measured, with a margin."""
    cgo: bool = False

    def find(self, environ: Mapping[str, str] = os.environ) -> Path | None:
        """The program in the cache, or None; builds nothing."""
        program = self._final(environ) / self.name
        return program if runs(program) else None

    def ensure(self, environ: Mapping[str, str] = os.environ) -> Path:
        """The program, built if the cache has none. Raises ProgramsError."""
        final = self._final(environ)
        if self.find(environ) is None:
            title = f"building {self.name} {self.version} with Go, once"
            with build(final, title, self.free_bytes_wanted, environ) as under_way:
                whole = {**under_way.environ, "CGO_ENABLED": "1" if self.cgo else "0"}
                here = dataclasses.replace(under_way, environ=whole)
                program = f"{self.module}/{self.package}"
                said = f"-X {self.version_variable}=v{self.version}"
                here.go("mod", "init", "gpuslice.io/lab")
                here.go("get", f"{program}@v{self.version}")
                options = ("-v", "-mod=mod", "-trimpath", "-ldflags", f"{_STRIPPED} {said}")
                here.go("install", *options, program)
        return final / self.name

    def _final(self, environ: Mapping[str, str]) -> Path:
        return cache_dir(environ) / "bin" / f"{self.name}-{self.version}"
