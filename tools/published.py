"""One program of a published Go module: images/nvidia_ctk.py has three.

Built once into the cache, under name and version. Standard library only: setup runs it.
"""

from __future__ import annotations

import dataclasses
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.building import build, cache_dir, runs

_STRIPPED: Final = "-s -w"
_LAZILY: Final = "-extldflags=-Wl,-z,lazy"
"""go-nvml loads NVML when it is called; bound at its start, nvidia-ctk would not start without."""
_STATIC: Final = "-extldflags=-static"
_GOARCH: Final = {"x86_64": "amd64", "aarch64": "arm64"}


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
    static: bool = False
    """With cgo: without shared libraries, so that it runs whatever glibc the machine has."""

    def find(
        self, environ: Mapping[str, str] = os.environ, machine: str = platform.machine()
    ) -> Path | None:
        """The program in the cache, or None; builds nothing."""
        program = self._final(environ, machine) / self.name
        return program if runs(program) else None

    def ensure(
        self, environ: Mapping[str, str] = os.environ, machine: str = platform.machine()
    ) -> Path:
        """The program, built if the cache has none. Raises ProgramsError."""
        final = self._final(environ, machine)
        if self.find(environ, machine) is None:
            title = f"building {self.name} {self.version} with Go, once"
            with build(final, title, self.free_bytes_wanted, environ) as under_way:
                whole = {**under_way.environ, "CGO_ENABLED": "1" if self.cgo else "0"}
                if machine != platform.machine():
                    whole |= {"GOARCH": _GOARCH[machine], "CC": f"{machine}-linux-gnu-gcc"}
                here = dataclasses.replace(under_way, environ=whole)
                program = f"{self.module}/{self.package}"
                flags = f"{_STRIPPED} -X {self.version_variable}=v{self.version}"
                if self.cgo:
                    flags += f" {_STATIC if self.static else _LAZILY}"
                here.go("mod", "init", "gpuslice.io/lab")
                here.go("get", f"{program}@v{self.version}")
                tags = "netgo,osusergo" if self.static else ""
                options = ("-v", "-mod=mod", "-trimpath", "-tags", tags, "-ldflags", flags)
                here.go("build", *options, "-o", str(here.into / self.name), program)
        return final / self.name

    def _final(self, environ: Mapping[str, str], machine: str) -> Path:
        other = "" if machine == platform.machine() else f"-{machine}"
        return cache_dir(environ) / "bin" / f"{self.name}-{self.version}{other}"
