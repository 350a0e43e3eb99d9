"""The lab for a module of node tests, and the small C programs that run in its pods."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.node.catalogue import OWN_PRELOAD
from lab.node.cri import Container
from lab.node.lab import STATIC_PROBE as STATIC
from lab.node.lab import Lab
from tests.node.scene import (
    AUDITS,
    DEEPBOUND,
    LAUNCHER,
    LINKED_PROBE,
    LOAD,
    NAMESPACED,
    PLUGIN,
    PROBE,
    SETUID_PROBE,
    STATIC_PROBE,
    Files,
    granted,
    lab_of,
)
from tests.support import ROOT

_C = Path(__file__).parent / "c"
_PROBE_SOURCE = ROOT / "simgpu/src/probe.c"
_STRICT = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wstrict-prototypes", "-O1")


@pytest.fixture(scope="session")
def test_programs(build_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Files:
    made = tmp_path_factory.mktemp("programs")

    def built(name: str, source: Path, *options: str | Path) -> Path:
        subprocess.run(["gcc", *_STRICT, source, "-o", made / name, *options], check=True)
        return made / name

    include = f"-I{_PROBE_SOURCE.parent}"
    driver = ("-DLINKED", f"-L{build_dir / 'lib' / 'simgpu'}", "-l:libcuda.so.1", "-ldl")
    probe = built("probe", _PROBE_SOURCE, include, "-ldl")
    shared = ("-shared", "-fPIC")
    plugin = (*shared, "-Dmain=probe", "-Wno-missing-prototypes", *driver)
    return {
        PROBE: (probe, 0o755),
        SETUID_PROBE: (probe, 0o4755),
        LINKED_PROBE: (built("linked", _PROBE_SOURCE, include, *driver), 0o755),
        STATIC_PROBE: (STATIC, 0o755),
        LAUNCHER: (built("launcher", _C / "launcher.c", "-static"), 0o755),
        OWN_PRELOAD: (built("own", _C / "own.c", *shared), 0o644),
        NAMESPACED: (built("namespaced", _C / "own_namespace.c", "-ldl"), 0o755),
        DEEPBOUND: (built("deepbound", _C / "own_namespace.c", "-DDEEP", "-ldl"), 0o755),
        PLUGIN: (built("plugin", _PROBE_SOURCE, include, *plugin), 0o644),
        AUDITS: (built("audits", _C / "audits.c", *shared, "-nostdlib"), 0o644),
        LOAD: (build_dir / "bin/cuda-load", 0o755),
    }


@pytest.fixture(scope="session")
def bare_lab(test_programs: Files) -> Iterator[Lab]:
    """Yield a lab with one GPU of 40 GiB. Its agent is as the last test left it."""
    with lab_of(files=test_programs) as lab:
        yield lab


@pytest.fixture
def lab(bare_lab: Lab) -> Lab:
    if not bare_lab.agent_running:
        bare_lab.start_agent()
    return bare_lab


@pytest.fixture
def half(lab: Lab) -> Iterator[Container]:
    with granted(lab, name="half") as container:
        yield container
