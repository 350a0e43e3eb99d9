"""simgpu gives the answers of NVIDIA's driver 470, which were recorded without a GPU.

ask.py records the answers. A line of recorded.tsv is: library, question, name, the driver's CUDA
version, answer.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT, run

pytestmark = [pytest.mark.sim, pytest.mark.shipped]

Answers = Mapping[str, Mapping[str, str]]
"""The answers of one library, by question and name."""

_CHECKED_FIRST = (
    r"cuCtxDestroy(_v2)?|cuEventQuery|cuEventSynchronize|cuGraphInstantiateWithParams(_ptsz)?"
    r"|cuIpcGetMemHandle|cuLaunchKernelEx(_ptsz)?|cuMemMapArrayAsync(_ptsz)?"
    r"|cuStreamBeginCaptureToGraph(_ptsz)?|cuStreamEndCapture(_ptsz)?"
)
KNOWN = {
    # NVIDIA's driver checks some arguments before it finds that cuInit was not called.
    "cuda": re.compile(rf"({_CHECKED_FIRST}) (zeros|pointers)"),
    # simgpu's libnvidia-ml is as of driver 580 in all generations.
    "nvml": re.compile(r"errors 2[1-9]"),
}
"""The questions, by library, to which simgpu and the recorded driver answer differently."""


def _recorded(library: str) -> Answers:
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for line in Path(__file__).with_name("recorded.tsv").read_text().splitlines():
        of, question, name, _, answer = line.split("\t")
        if of == library:
            found[question][name] = answer
    return found


def _ask(library: str, directory: Path, variables: Mapping[str, str] = {}) -> Any:
    """Run ask.py on the library in the directory, with all names in simgpu's lists. There is no
    GPU, because no daemon serves this SIMGPU_DIR."""
    lists = (ROOT / "simgpu/src/abi" / name for name in ("cuda.def", "cuda_unsupported.def"))
    text = "".join(path.read_text() for path in lists)
    rows = re.findall(r"^[A-Z_]+\((\w+), (\w+), \d", text, flags=re.MULTILINE)
    environ = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(directory), **variables}
    done = run(
        *(sys.executable, "-m", "tests.simgpu.driver.ask", library),
        input="\n".join(sorted({name for row in rows for name in row})),
        env={**environ, "SIMGPU_DIR": "/nonexistent"},
        check=True,
    )
    return json.loads(done.stdout)


def _row(rows: Mapping[str, str], name: str) -> str:
    """Return the row of the name. If ask.py left the row out, return the one that it equals."""
    if name in rows:
        return rows[name]
    base, _, flags = name.partition(" flags=")
    if flags:
        return _row(rows, f"{base} flags=2" if flags == "3" else base)
    return rows.get("-1", "not found")


def _differences(real: Answers, asked: Answers) -> Iterator[tuple[str, str, str]]:
    """Yield (question, recorded, simgpu's) where answers differ. A recorded crash equals any."""
    for name in sorted(real["calls"].keys() & asked["calls"].keys()):
        both = (answers["calls"][name].split(" ", 1) for answers in (real, asked))
        for how, theirs, ours in zip(("zeros", "pointers"), *both, strict=True):
            if theirs != ours and not theirs.startswith("SIG"):
                yield f"{name} {how}", theirs, ours
    for question in sorted(real.keys() - {"calls"}):
        for name in sorted({*real[question], *asked[question]}):
            theirs, ours = (_row(answers[question], name) for answers in (real, asked))
            if theirs != ours:
                yield f"{question} {name}", theirs, ours


def _assert_answers_as_recorded(library: str, asked: Answers) -> None:
    found = list(_differences(_recorded(library), asked))
    known = [each for each in found if KNOWN[library].fullmatch(each[0])]
    assert found == known
    assert known, "the exception is needed"


@pytest.mark.parametrize(("library", "name"), [("cuda", "simgpu-11040"), ("nvml", "simgpu")])
def test_a_library_answers_as_the_driver_did(library: str, name: str, build_dir: Path) -> None:
    _assert_answers_as_recorded(library, _ask(library, build_dir / "lib" / name))


def test_the_library_in_front_of_it_answers_alike(build_dir: Path, tmp_path: Path) -> None:
    """libvgpu.so changes neither the names that are found nor codes before cuInit."""
    limited = {
        "LD_PRELOAD": str(build_dir / "lib" / "libvgpu.so"),
        "CUDA_DEVICE_MEMORY_LIMIT": "1g",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(tmp_path / "region"),
    }
    _assert_answers_as_recorded("cuda", _ask("cuda", build_dir / "lib" / "simgpu-11040", limited))


def test_no_call_before_cuinit_crashes(build_dir: Path) -> None:
    """The newest generation is only tested for crashes, because no driver of it was recorded."""
    calls = _ask("cuda", build_dir / "lib" / "simgpu")["calls"]
    assert len(calls) > 350
    assert {name: said for name, said in calls.items() if "SIG" in said} == {}
