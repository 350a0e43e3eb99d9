"""Builds NVIDIA's programs for CDI from their published module, once, into the cache. They call
NVML, so they need cgo. This module uses only the standard library, because setup runs it.

nvidia-ctk describes GPUs to a container runtime. The runtime executes nvidia-cdi-hook on the host,
which lacks the image's glibc, so this program is linked statically. Some platforms have
nvidia-container-runtime as the default runtime, and some tests do too.
"""

from __future__ import annotations

import dataclasses
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.building import build, cache_dir, runs

_MODULE: Final = "github.com/NVIDIA/nvidia-container-toolkit"
_LAZILY: Final = "-extldflags=-Wl,-z,lazy"
"""Bind NVML's symbols lazily. Otherwise nvidia-ctk would not start on a machine without NVML."""
_STATIC: Final = "-extldflags=-static"
_GOARCH: Final = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class Program:
    """A program of the module. static: whether to link statically, to run with any glibc."""

    name: str
    version: str = "1.20.1"
    static: bool = False

    @property
    def package(self) -> str:
        """The program's directory in the module."""
        return f"cmd/{self.name}"

    def ensure(self, machine: str = platform.machine()) -> Path:
        """Return the program's path. Build it if the cache has none. Raise ProgramsError."""
        is_other = machine != platform.machine()
        directory = f"{self.name}-{self.version}" + f"-{machine}" * is_other
        final = cache_dir() / "bin" / directory
        if not runs(final / self.name):
            title = f"building {self.name} {self.version} with Go, once"
            with build(final, title, 1_000_000_000) as under_way:
                cross = {"GOARCH": _GOARCH[machine], "CC": f"{machine}-linux-gnu-gcc"}
                environ = {**under_way.environ, "CGO_ENABLED": "1", **(cross if is_other else {})}
                here = dataclasses.replace(under_way, environ=environ)
                program = f"{_MODULE}/{self.package}"
                flags = f"-s -w -X {_MODULE}/internal/info.version=v{self.version}"
                flags += f" {_STATIC if self.static else _LAZILY}"
                here.go("mod", "init", "gpuslice.io/lab")
                here.go("get", f"{program}@v{self.version}")
                tags = "netgo,osusergo" if self.static else ""
                options = ("-v", "-mod=mod", "-trimpath", "-tags", tags, "-ldflags", flags)
                here.go("build", *options, "-o", str(here.into / self.name), program)
        return final / self.name


NVIDIA_CTK: Final = Program("nvidia-ctk")
NVIDIA_CDI_HOOK: Final = Program("nvidia-cdi-hook", static=True)
NVIDIA_CONTAINER_RUNTIME: Final = Program("nvidia-container-runtime")
PROGRAMS: Final = {each.name: each for each in (NVIDIA_CDI_HOOK, NVIDIA_CTK)}
