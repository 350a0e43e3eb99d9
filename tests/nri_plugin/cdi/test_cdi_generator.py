"""CDI specs for GPUs that have none: generated from nvidia-ctk's output, or not at all."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gpuslice.contract import names
from nri_plugin.host import cdi_reader
from nri_plugin.host.cdi_generator import FILE, OPTIONS, Generator, render
from nri_plugin.policy.refusals import ChildError
from tests.nri_plugin.cdi.specs import mount, spec
from tests.nri_plugin.cdi_nodes import NODES
from tests.support import Clock

UUID, OTHER = "GPU-a", "GPU-b"


def document(*devices: str, **fields: Any) -> str:
    common = {**mount("/dev/zero", "/x"), "deviceNodes": [*NODES]}
    own = ({"name": each, "containerEdits": mount("/dev/zero", f"/{each}")} for each in devices)
    return spec(*own, containerEdits=common, **fields)


def test_the_missing_gpus_alone_are_kept() -> None:
    text, problem = render(document("0", UUID, OTHER, "all").encode(), [UUID])
    kept = json.loads(text)
    assert problem == ""
    assert [device["name"] for device in kept["devices"]] == [UUID]
    assert kept["containerEdits"] == json.loads(document())["containerEdits"]
    printed = "\n".join((document("x", kind="a.b/mig"), "7", document(UUID)))
    _, problem = render(printed.encode(), [UUID, "GPU-gone"])
    assert problem.startswith("nvidia-ctk does not describe nvidia.com/gpu=GPU-gone (")


@pytest.mark.parametrize(
    ("printed", "text"),
    [
        ("", "does not describe nvidia.com/gpu=GPU-a (it has: none)"),
        ("cdiVersion: 0.5.0", "printed no JSON"),
        ("\xff", "printed no JSON"),
        (document("0", "all"), "(it has: 0, all)"),
        (document("x", kind="other.com/gpu"), "(it has: none)"),
        (json.dumps({"kind": names.CDI_KIND, "devices": None}), "(it has: none)"),
        (json.dumps({"kind": names.CDI_KIND, "devices": [7]}), "(it has: none)"),
    ],
)
def test_output_of_nvidia_ctk_without_the_gpu_is_refused(printed: str, text: str) -> None:
    with pytest.raises(ChildError) as raised:
        render(printed.encode("latin-1"), [UUID])
    assert text in str(raised.value)


def over(command: Sequence[str], directory: Path, clock: Clock) -> Generator:
    """Return a generator with this program in place of nvidia-ctk."""
    return Generator(command, directory, os.environ, deadline_s=60, min_interval_s=30, now=clock)


def test_what_is_written_is_read_like_any_spec(tmp_path: Path) -> None:
    directory, printed = tmp_path / "run/.cdi", document(UUID, "all")
    script = f"import sys; print({printed!r} if sys.argv[1:] == {[*OPTIONS]} else '')"
    generator = over((sys.executable, "-c", script), directory, Clock())
    assert not generator.discard()
    text = asyncio.run(generator.generate([UUID]))
    assert text is not None and generator.problem is None
    for _ in range(2):
        generator.write(text)
    assert os.listdir(directory) == [FILE]
    assert [f.stat().st_mode & 0o777 for f in (directory, directory / FILE)] == [0o755, 0o644]
    device = cdi_reader.load([directory]).devices[UUID]
    assert [each.destination for each in device.own.mounts] == [f"/{UUID}"]
    assert not generator.withdraw_duplicates()
    assert generator.discard()
    assert not cdi_reader.load([directory]).devices


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ((sys.executable, "-c", "raise SystemExit('no NVML here')"), "no NVML here"),
        (("/nowhere/nvidia-ctk",), "/nowhere/nvidia-ctk: No such file or directory"),
    ],
)
def test_a_failure_of_nvidia_ctk_is_reported_once(
    tmp_path: Path, command: Sequence[str], problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    generator = over(command, tmp_path, clock)
    for _ in range(3):
        assert generator.due
        assert asyncio.run(generator.generate([UUID])) is None
        clock.seconds += 29.9
        assert not generator.due
        clock.seconds += 0.1
    assert problem in (generator.problem or "")
    assert len([line for line in caplog.messages if "no CDI spec generated" in line]) == 1
