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
from tests.nri_plugin.cdi_nodes import NODES

UUID, OTHER = "GPU-a", "GPU-b"


def document(*devices: str, kind: str = names.CDI_KIND) -> dict[str, Any]:
    mount = {"hostPath": "/dev/zero", "containerPath": "/x"}
    return {
        "cdiVersion": "0.5.0",
        "kind": kind,
        "devices": [
            {"name": name, "containerEdits": {"mounts": [{**mount, "containerPath": f"/{name}"}]}}
            for name in devices
        ],
        "containerEdits": {"mounts": [mount], "deviceNodes": [*NODES]},
    }


def reply(*documents: object) -> bytes:
    return "\n".join(json.dumps(each) for each in documents).encode()


def test_the_missing_gpus_alone_are_kept() -> None:
    text, problem = render(reply(document("0", UUID, OTHER, "all")), [UUID])
    kept = json.loads(text)
    assert problem == ""
    _, problem = render(reply(document("x", kind="a.b/mig"), 7, document(UUID)), [UUID, "GPU-gone"])
    assert problem.startswith("nvidia-ctk does not describe nvidia.com/gpu=GPU-gone (")
    assert [device["name"] for device in kept["devices"]] == [UUID]
    assert kept["containerEdits"] == document()["containerEdits"]


@pytest.mark.parametrize(
    ("printed", "text"),
    [
        (b"", "does not describe nvidia.com/gpu=GPU-a (it has: none)"),
        (b"cdiVersion: 0.5.0", "printed no JSON"),
        (b"\xff", "printed no JSON"),
        (reply(document("0", "all")), "(it has: 0, all)"),
        (reply(document("x", kind="other.com/gpu")), "(it has: none)"),
        (reply({"kind": names.CDI_KIND, "devices": None}), "(it has: none)"),
        (reply({"kind": names.CDI_KIND, "devices": [7]}), "(it has: none)"),
    ],
)
def test_output_of_nvidia_ctk_without_the_gpu_is_refused(printed: bytes, text: str) -> None:
    with pytest.raises(ChildError) as raised:
        render(printed, [UUID])
    assert text in str(raised.value)


class Ctk:
    """A generator over a script that stands for nvidia-ctk, and a clock."""

    def __init__(self, directory: Path, script: str, command: Sequence[str] | None = None) -> None:
        self.now_s = 0.0
        self.generator = Generator(
            command or (sys.executable, "-c", script),
            directory,
            os.environ,
            deadline_s=60,
            min_interval_s=30,
            now=lambda: self.now_s,
        )

    def generate(self) -> str | None:
        return asyncio.run(self.generator.generate([UUID]))


def test_what_is_written_is_read_like_any_spec(tmp_path: Path) -> None:
    directory = tmp_path / ".cdi"
    printed = json.dumps(document(UUID, "all"))
    ctk = Ctk(directory, f"import sys; print({printed!r} if sys.argv[1:] == {[*OPTIONS]} else '')")
    assert not ctk.generator.discard()
    text = ctk.generate()
    assert text is not None and ctk.generator.problem is None
    ctk.generator.write(text)
    ctk.generator.write(text)
    assert os.listdir(directory) == [FILE]
    assert (directory / FILE).stat().st_mode & 0o777 == 0o644
    device = cdi_reader.load([directory]).devices[UUID]
    assert [mount.destination for mount in device.own.mounts] == [f"/{UUID}"]
    assert ctk.generator.discard()
    assert not cdi_reader.load([directory]).devices


@pytest.mark.parametrize(
    ("script", "command", "problem"),
    [
        ("raise SystemExit('no NVML here')", None, "no NVML here"),
        ("print('x')", None, "printed no JSON"),
        ("", ("/nowhere/nvidia-ctk",), "/nowhere/nvidia-ctk: No such file or directory"),
    ],
)
def test_a_failure_of_nvidia_ctk_is_reported_once(
    tmp_path: Path,
    script: str,
    command: Sequence[str] | None,
    problem: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ctk = Ctk(tmp_path, script, command)
    assert ctk.generate() is None and ctk.generate() is None
    assert problem in (ctk.generator.problem or "")
    assert len([line for line in caplog.messages if "no CDI spec generated" in line]) == 1


def test_nvidia_ctk_is_not_run_again_at_once(tmp_path: Path) -> None:
    ctk = Ctk(tmp_path, "")
    assert ctk.generator.due
    ctk.generate()
    assert not ctk.generator.due
    ctk.now_s = 30
    assert ctk.generator.due
