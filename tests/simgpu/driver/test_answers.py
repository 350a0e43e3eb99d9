"""simgpu answers as NVIDIA's drivers did when they were recorded, without a GPU."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import sanitizers
from tests.simgpu.driver import answers
from tests.simgpu.driver.answers import Difference, differences
from tests.simgpu.driver.exceptions import CUDA, NVML, KnownDifference
from tests.support import ROOT

pytestmark = [pytest.mark.sim, pytest.mark.shipped]


def _names_of_the_lists() -> set[str]:
    """The base names and symbols of cuda.def and cuda_unsupported.def."""
    lists = (ROOT / "simgpu/src/abi" / name for name in ("cuda.def", "cuda_unsupported.def"))
    text = "".join(path.read_text() for path in lists)
    rows = re.findall(r"^[A-Z_]+\((\w+), (\w+), \d", text, flags=re.MULTILINE)
    return {name for row in rows for name in row}


def _answers(part: str, directory: Path, **environ: str) -> Any:
    """Output of ask.py on the library in `directory`; part: cuda or nvml."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.simgpu.driver.ask", part],
        input="\n".join(sorted(_names_of_the_lists())),
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(directory), **environ},
        text=True,
        capture_output=True,
        check=True,
    )
    return json.loads(done.stdout)


@functools.cache
def _ask(part: str, directory: Path, preloaded: str = "") -> Any:
    """There is no GPU: no daemon has this directory."""
    if not preloaded:
        return _answers(part, directory, SIMGPU_DIR="/nonexistent")
    with tempfile.TemporaryDirectory() as temporary:
        return _answers(
            part,
            directory,
            SIMGPU_DIR="/nonexistent",
            LD_PRELOAD=preloaded,
            CUDA_DEVICE_MEMORY_LIMIT="1g",
            CUDA_DEVICE_MEMORY_SHARED_CACHE=f"{temporary}/region",
        )


def _unknown(found: Sequence[Difference], known: Sequence[KnownDifference]) -> list[Difference]:
    return [
        difference
        for difference in found
        if not any(known.question.fullmatch(difference.question) for known in known)
    ]


def _cuda(version: int, build_dir: Path) -> list[Difference]:
    asked = _ask("cuda", build_dir / "lib" / f"simgpu-{version}")
    return list(differences(answers.read("cuda", version), asked))


def _nvml(version: int, build_dir: Path) -> list[Difference]:
    """There is one libnvidia-ml, of driver 580."""
    asked = _ask("nvml", build_dir / "lib" / "simgpu")
    return list(differences(answers.read("nvml", version), asked))


def _of(version: int, table: Sequence[KnownDifference]) -> list[KnownDifference]:
    return [known for known in table if version in known.versions]


@pytest.mark.parametrize("version", answers.VERSIONS)
def test_libcuda_answers_as_the_driver_did(version: int, build_dir: Path) -> None:
    found, known = _cuda(version, build_dir), _of(version, CUDA)
    assert _unknown(found, known) == []
    for exception in known:  # each is needed
        assert any(exception.question.fullmatch(d.question) for d in found), exception


@pytest.mark.parametrize("version", answers.VERSIONS)
def test_libnvidia_ml_answers_as_the_driver_did(version: int, build_dir: Path) -> None:
    found, known = _nvml(version, build_dir), _of(version, NVML)
    assert _unknown(found, known) == []
    for exception in known:
        assert any(exception.question.fullmatch(d.question) for d in found), exception


@pytest.mark.parametrize("version", answers.VERSIONS)
def test_the_library_in_front_of_it_answers_alike(version: int, build_dir: Path) -> None:
    """libvgpu.so changes neither what a name means nor a code before cuInit."""
    asked = _ask(
        "cuda",
        build_dir / "lib" / f"simgpu-{version}",
        sanitizers.preload(build_dir / "lib" / "libvgpu.so"),
    )
    found = list(differences(answers.read("cuda", version), asked))
    assert _unknown(found, _of(version, CUDA)) == []


@pytest.mark.parametrize("version", answers.VERSIONS)
def test_recorded_drivers(version: int) -> None:
    """Each driver has hundreds of answers: to the calls that libvgpu.so hooks, of
    cuGetProcAddress for every name."""
    cuda, nvml = (answers.read(library, version) for library in ("cuda", "nvml"))
    assert cuda["values"]["version"] == f"0 {version}"
    assert len(cuda["calls"]) > 150 and len(nvml["calls"]) > 10
    assert len(cuda["resolved"]) > 250


def test_no_call_before_cuinit_crashes(build_dir: Path) -> None:
    """This generation is not compared with any recorded driver."""
    calls = _ask("cuda", build_dir / "lib" / "simgpu")["calls"]
    assert len(calls) > 350
    assert {name: said for name, said in calls.items() if "SIG" in said} == {}
