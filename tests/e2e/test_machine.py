"""Leftovers on a machine are detected; no cluster is needed for that."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e import machine


def test_leftovers_on_a_machine_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = tmp_path / "layer-of-etc" / "upper"
    (layer / "empty").mkdir(parents=True)
    monkeypatch.setenv(machine.LAYERS, str(tmp_path))
    monkeypatch.setattr(machine, "FRESH", ())
    kinds = ("process", "file", "unix socket", "shared memory")
    before = machine.look(kinds=kinds)
    assert machine.left(before, before) == []
    (layer / "passwd").write_text("")
    (layer / "empty").rmdir()
    with subprocess.Popen([sys.executable, "-c", "input('left behind')"], stdin=-1) as process:
        left = machine.left(before, machine.look(kinds=kinds))
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.close()
    assert "+ file: /etc/passwd" in left
    assert "- file: /etc/empty/" in left
    assert any(each.startswith("+ process: ") and "left behind" in each for each in left)


def test_kernel_settings_and_devices_are_seen_and_do_not_change_by_themselves() -> None:
    kinds = ("kernel setting", "device", "route")
    found = machine.look(kinds=kinds)
    assert any(each.startswith("vm/overcommit_memory = ") for each in found["kernel setting"])
    assert found["device"]["/dev/null"] == 1
    assert not any("random/" in each for each in found["kernel setting"])
    assert [each for each in machine.left(found, machine.look(kinds=kinds)) if "vm/" in each] == []


def test_mounts_and_namespaces_of_another_process_are_seen() -> None:
    kinds = ("mount", "interface", "namespace")
    found = machine.look(kinds=kinds, process=str(os.getpid()))
    assert found["mount"] == machine.look(kinds=("mount",))["mount"]
    assert found["interface"]["lo"] == 1
    assert os.readlink("/proc/self/ns/net") in found["namespace"]
