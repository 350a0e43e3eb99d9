"""The inspections before containers start, some of which never end."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from nri_plugin.command_line import from_arguments
from nri_plugin.containers.start import ContainerStart
from nri_plugin.host import bundle
from nri_plugin.host.files import RunDirectory
from nri_plugin.metrics import Metrics
from nri_plugin.policy.model import Container, Pod
from nri_plugin.policy.notices import Notices
from nri_plugin.threads import Worker

PODS = 110
"""Pods of a node, the kubelet's default."""
RETRIES = 5
STRONG = {
    "process": {"cwd": "/", "capabilities": {"effective": ["CAP_SYS_ADMIN"]}},
    "linux": {"namespaces": []},
}


def start(tmp_path: Path) -> ContainerStart:
    arguments = ["--library", "/l.so", "--containerd-state", str(tmp_path)]
    settings = replace(from_arguments(arguments, {}), work_deadline_s=0.01)
    files = RunDirectory(tmp_path / "run", lambda: 1)
    return ContainerStart(settings, files, Worker("files"), Metrics(), Notices(), Path)


async def test_pods_whose_inspections_hang_leave_slots_to_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The read file never ends, as on an NFS server that hangs, and the kubelet retries."""
    starts, hung = start(tmp_path), []
    for number in range(PODS - 1):
        directory = bundle.of(tmp_path, f"hung-{number}")
        directory.mkdir(parents=True)
        os.mkfifo(directory / "config.json")
        hung.append(directory / "config.json")
        for _ in range(RETRIES):
            pod = Pod(f"uid-{number}", "team", f"pod-{number}")
            await starts.without_share(pod, Container(f"hung-{number}", "main"))
    assert caplog.text.count("not inspected") == len(hung) * RETRIES
    starts._settings = replace(starts._settings, work_deadline_s=60)
    directory = bundle.of(tmp_path, "other")
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(STRONG))
    (directory / "init.pid").write_text(str(os.getpid()))
    await starts.without_share(Pod("uid-other", "team", "other"), Container("other", "main"))
    notice = starts._notices.first()
    for fifo in hung:
        os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
    assert notice is not None and "SYS_ADMIN" in notice.text
