"""simgpu answers as NVIDIA's driver 470 did when it was recorded, without a GPU."""

from __future__ import annotations

import functools
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests import sanitizers
from tests.simgpu.driver.answers import KNOWN, VERSION, Difference, differences, recorded
from tests.support import ROOT, run

pytestmark = [pytest.mark.sim, pytest.mark.shipped]


def _names_of_the_lists() -> set[str]:
    """The base names and symbols of cuda.def and cuda_unsupported.def."""
    lists = (ROOT / "simgpu/src/abi" / name for name in ("cuda.def", "cuda_unsupported.def"))
    text = "".join(path.read_text() for path in lists)
    rows = re.findall(r"^[A-Z_]+\((\w+), (\w+), \d", text, flags=re.MULTILINE)
    return {name for row in rows for name in row}


@functools.cache
def _ask(library: str, directory: Path, preloaded: str = "") -> Any:
    """Output of ask.py on the library in `directory`. There is no GPU: no daemon has this SIMGPU
    directory."""
    environ = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(directory)}
    with tempfile.TemporaryDirectory() as temporary:
        if preloaded:
            environ |= {
                "LD_PRELOAD": preloaded,
                "CUDA_DEVICE_MEMORY_LIMIT": "1g",
                "CUDA_DEVICE_MEMORY_SHARED_CACHE": f"{temporary}/region",
            }
        done = run(
            *(sys.executable, "-m", "tests.simgpu.driver.ask", library),
            input="\n".join(sorted(_names_of_the_lists())),
            env={**environ, "SIMGPU_DIR": "/nonexistent"},
            check=True,
        )
    return json.loads(done.stdout)


def _found(library: str, build_dir: Path, preloaded: str = "") -> list[Difference]:
    """There is one libnvidia-ml, of driver 580."""
    name = {"cuda": f"simgpu-{VERSION}", "nvml": "simgpu"}[library]
    asked = _ask(library, build_dir / "lib" / name, preloaded)
    return list(differences(recorded(library), asked))


def _is_known(library: str, difference: Difference) -> bool:
    return KNOWN[library].fullmatch(difference.question) is not None


@pytest.mark.parametrize("library", KNOWN)
def test_a_library_answers_as_the_driver_did(library: str, build_dir: Path) -> None:
    found = _found(library, build_dir)
    assert [each for each in found if not _is_known(library, each)] == []
    assert found, "the exception is needed"


def test_the_library_in_front_of_it_answers_alike(build_dir: Path) -> None:
    """libvgpu.so changes neither what a name means nor a code before cuInit."""
    preloaded = sanitizers.preload(build_dir / "lib" / "libvgpu.so")
    found = _found("cuda", build_dir, preloaded)
    assert [each for each in found if not _is_known("cuda", each)] == []


def test_the_recorded_driver() -> None:
    """It has hundreds of answers: to the calls that libvgpu.so hooks, of cuGetProcAddress for every
    name."""
    cuda, nvml = recorded("cuda"), recorded("nvml")
    assert cuda["values"]["version"] == f"0 {VERSION}"
    assert len(cuda["calls"]) > 150 and len(nvml["calls"]) > 10
    assert len(cuda["resolved"]) > 250


def test_no_call_before_cuinit_crashes(build_dir: Path) -> None:
    """This generation is not compared with any recorded driver."""
    calls = _ask("cuda", build_dir / "lib" / "simgpu")["calls"]
    assert len(calls) > 350
    assert {name: said for name, said in calls.items() if "SIG" in said} == {}
