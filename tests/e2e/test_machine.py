"""Leftovers on a machine are detected; no cluster is needed for that."""

from __future__ import annotations

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
    kinds = ("process", "file", "unix socket")
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
