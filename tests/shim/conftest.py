"""Programs under the library over a simulated host: two GPUs of different size, one grant."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from gpuslice.contract import grant_file, names
from shim import region
from tests import sanitizers
from tests.shim.clients import SERVE_COMMANDS
from tests.shim.region.core import Box, patch
from tests.simgpu.host import start, stop
from tests.simgpu.peer import Peer
from tests.support import GIB as GIB
from tests.support import MIB as MIB
from tests.support import ROOT, run
from tests.talking import TALKER, Talk, talking

GPUS = (
    ("GPU-5e1f0a70-0000-4000-8000-0000000000aa", 4 * GIB),
    ("GPU-5e1f0a70-0000-4000-8000-0000000000bb", 2 * GIB),
)
NULL_GPU = "GPU-6e756c6c-0000-4000-8000-000000000000"
"""The UUID of the null driver's GPU."""
PLAIN = (ROOT / "tests" / "plain_host.toml").read_text()
CONTEXT_BYTES = 300 * MIB
AS_ON_A_GPU = 'context_overhead = "300Mi"\nmodule_overhead = "2Mi"\ngranule = "2Mi"\n'
"""How much memory the driver of `gpu_host` takes. A context takes CONTEXT_BYTES."""


@dataclass(frozen=True)
class Host:
    """Runs programs as on a node: LD_LIBRARY_PATH has the driver, and libvgpu.so is preloaded."""

    library: Path
    driver_dir: Path
    sim_dir: Path | None = None

    def environment(
        self, grant_dir: Path | None = None, *, preload: bool = True
    ) -> Mapping[str, str]:
        preloaded = sanitizers.preload(*([self.library] if preload else []))
        return {
            "PATH": os.environ["PATH"],
            "HOME": os.environ.get("HOME", "/"),
            "LD_LIBRARY_PATH": str(self.driver_dir),
            **({"SIMGPU_DIR": str(self.sim_dir)} if self.sim_dir else {}),
            **({"LD_PRELOAD": preloaded} if preloaded else {}),
            **sanitizers.environment(),
            **({names.ENV_DIR: str(grant_dir)} if grant_dir else {}),
            **{name: text for name, text in os.environ.items() if name == names.ENV_BOOKINGS},
        }

    def run(
        self,
        command: Sequence[str | Path],
        grant_dir: Path | None = None,
        *,
        preload: bool = True,
        status: int = 0,
        variables: Mapping[str, str] = {},
    ) -> subprocess.CompletedProcess[str]:
        environment = {**self.environment(grant_dir, preload=preload), **variables}
        done = run(*command, env=environment)
        assert done.returncode == status, done
        return done

    def python(
        self, program: str, grant_dir: Path | None = None, **more: Any
    ) -> subprocess.CompletedProcess[str]:
        return self.run([sys.executable, "-c", program], grant_dir, **more)

    def serving(
        self, program: str, grant_dir: Path | None = None, *, preload: bool = True
    ) -> AbstractContextManager[Talk]:
        """Start a Python program that afterwards executes the lines that the test sends."""
        command = [sys.executable, "-c", program + SERVE_COMMANDS]
        return talking(command, self.environment(grant_dir, preload=preload))

    def talker(
        self, grant_dir: Path, command: Sequence[str] = TALKER
    ) -> AbstractContextManager[Talk]:
        return talking(command, self.environment(grant_dir))


@dataclass
class Grants:
    """Makes grants for tests: `make(bytes of gpu 0[, of gpu 1])`.

    context_bytes: the grant's figure for a context, unless `make` is given another.
    """

    parent: Path
    context_bytes: int = 0
    made: int = 0

    def make(
        self, *limits: int, core_percent: int = 100, created_ns: int = 0, **fields: Any
    ) -> Path:
        """Make a grant, and return its directory. fields: other fields of each grant_file.Gpu."""
        directory = self.parent / f"grant{self.made}"
        self.made += 1
        directory.mkdir()
        of_each = {"context_bytes": self.context_bytes, **fields}
        gpus = [
            grant_file.Gpu(uuid, limit, core_percent, minor, **of_each)
            for minor, ((uuid, _), limit) in enumerate(zip(GPUS, limits, strict=False))
        ]
        region.create(directory, gpus, created_ns)
        return directory


def used(directory: Path, gpu: int = 0) -> int:
    """Return the bytes charged to the grant's processes."""
    return region.status(directory)[gpu].use.used_bytes


def null_grant(directory: Path, limit_bytes: int = GIB) -> Path:
    """Make a grant of the null driver's GPU in the directory."""
    region.create(directory, [grant_file.Gpu(NULL_GPU, limit_bytes, 100, 0)])
    return directory


def taken(host: Host) -> int:
    """Return how many bytes of the first GPU all processes use together."""
    assert host.sim_dir is not None
    with closing(Peer(host.sim_dir / "gpus" / "0.sock")) as peer:
        return GPUS[0][1] - peer.free_bytes()


def change_grant(directory: Path, **fields: int) -> None:
    """Change each of the grant's GPUs in place, as the node agent does."""
    path = directory / names.FILE_GRANT
    data = path.read_bytes()
    grant = grant_file.decode(data)
    assert grant is not None
    gpus = [replace(gpu, **fields) for gpu in grant.gpus]  # type: ignore[arg-type]
    for write in grant_file.update(data, grant_file.Grant(grant.grant_id, gpus)):
        patch(path, write.offset, write.data)


@pytest.fixture(autouse=True)
def nothing_reported() -> Iterator[None]:
    """A sanitizer's report fails the test, whatever the program's exit status."""
    yield
    said = sanitizers.take_reports()
    assert not said, said


@pytest.fixture
def grants(request: pytest.FixtureRequest, tmp_path: Path) -> Grants:
    """Grants in which a context costs as much as on the test's host."""
    as_on_a_gpu = {"gpu_host", "slow_host"} & {*request.fixturenames}
    return Grants(tmp_path, CONTEXT_BYTES if as_on_a_gpu else 0)


Limited = Callable[..., Callable[[str], "subprocess.CompletedProcess[str]"]]
"""`limited(GIB)("program")` runs a Python program under a grant of 1 GiB. The test module's BEGIN
precedes the program. `limited` has the arguments of `Grants.make`."""


@pytest.fixture
def limited(host: Host, grants: Grants, request: pytest.FixtureRequest) -> Limited:
    return _limited(host, grants, request)


@pytest.fixture
def gpu_limited(gpu_host: Host, grants: Grants, request: pytest.FixtureRequest) -> Limited:
    return _limited(gpu_host, grants, request)


def _limited(host: Host, grants: Grants, request: pytest.FixtureRequest) -> Limited:
    def under(*limits: int, **grant: Any) -> Callable[[str], subprocess.CompletedProcess[str]]:
        directory = grants.make(*limits, **grant)
        return lambda program: host.python(request.module.BEGIN + program, directory)

    return under


@pytest.fixture(scope="session")
def library(build_dir: Path) -> Path:
    return build_dir / "lib" / "libvgpu.so"


@pytest.fixture(scope="session")
def null_host(build_dir: Path, library: Path) -> Host:
    """The null driver, which has one GPU and needs no daemon."""
    return Host(library, build_dir / "lib" / "null")


@pytest.fixture(scope="session")
def host(
    build_dir: Path, library: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Host]:
    """The simulated driver, with a daemon that simulates GPUS."""
    with simulated(build_dir, library, tmp_path_factory.mktemp("host")) as host:
        yield host


@pytest.fixture(scope="session")
def gpu_host(
    build_dir: Path, library: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Host]:
    """A host whose contexts and code take memory in whole blocks, as with a real driver."""
    with simulated(build_dir, library, tmp_path_factory.mktemp("gpu"), AS_ON_A_GPU) as host:
        yield host


@pytest.fixture
def slow_host(build_dir: Path, library: Path, tmp_path: Path) -> Iterator[Host]:
    """A `gpu_host` on which an exited process's memory stays allocated for a while."""
    settings = AS_ON_A_GPU + "teardown_delay_s = 0.6\n"
    with simulated(build_dir, library, tmp_path, settings) as host:
        yield host


def gpu_table(minor: int, uuid: str, size_bytes: int, **more: object) -> str:
    """Return the `[[gpu]]` table of a simulated host's description."""
    keys = {"pci_bus": minor + 1, **more}
    return (
        f'[[gpu]]\nname = "NVIDIA SimGPU"\nuuid = "{uuid}"\nminor = {minor}\n'
        f'memory = "{size_bytes}"\n' + "".join(f"{key} = {value}\n" for key, value in keys.items())
    )


@contextmanager
def simulated(
    build_dir: Path, library: Path, directory: Path, settings: str = "", gpus: str = ""
) -> Iterator[Host]:
    config = directory / "host.toml"
    config.write_text(
        ("" if "context_overhead" in settings else PLAIN)
        + f'{settings}driver_version = "580.65.06"\ncuda_version = 13000\n'
        + (gpus or "".join(gpu_table(minor, *gpu) for minor, gpu in enumerate(GPUS)))
    )
    sim_dir = directory / "sim"
    daemon = start(sim_dir, "--config", config)
    try:
        yield Host(library, build_dir / "lib" / "simgpu", sim_dir)
    finally:
        stop(sim_dir, daemon)


@pytest.fixture
def box(build_dir: Path, tmp_path: Path) -> Box:
    """A grant of one GPU, its region, and a program with the library's core but no hooks."""
    made = Box(tmp_path, build_dir / "bin" / "vgpu-core-test")
    made.write()
    return made
