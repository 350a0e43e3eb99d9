"""The specs that the agent generates: in place of which ones, and when again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nri_plugin.host import watch as module
from nri_plugin.host.cdi_generator import FILE
from tests.nri_plugin.cdi_nodes import NODES
from tests.nri_plugin.host.watch_scene import OTHER, TWO, UUID, Host, broken, inspect, run, spec


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_generated_spec_replaces_an_unusable_one_of_another_program(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    """It does so until the other one is usable."""
    host.show(*TWO)
    whole = spec(UUID, OTHER)
    host.spec.write_text(broken(whole, UUID))
    host.ctk.write_text(whole)
    node = host.node()
    ours = str(host.settings.generated_cdi_dir / FILE)
    for _ in range(3):
        assert run(lambda: inspect(node)) == module.Found([], {})
    specs, _ = run(node.inspect_host)
    assert {name: device.file for name, device in specs.devices.items()} == {
        UUID: ours,
        OTHER: str(host.spec),
    }
    replaced = [line for line in caplog.messages if "CDI spec replaced" in line]
    assert len(replaced) == 1 and "/dev/nvidia-gone: No such file" in replaced[0]
    host.spec.write_text(whole)
    specs, _ = run(node.inspect_host)
    assert specs.devices[UUID].file == str(host.spec)


def test_a_generated_spec_is_renewed_when_a_file_of_it_vanishes(host: Host, tmp_path: Path) -> None:
    """A library: the driver was replaced. What compute does not need is left out at once."""
    library, socket = tmp_path / "libcuda.so.1", tmp_path / "socket"
    edits: Any = {"deviceNodes": [*NODES]}
    for file in (library, socket):
        file.touch()
    edits["mounts"] = [{"hostPath": str(f), "containerPath": str(f)} for f in (library, socket)]
    host.spec.unlink()
    document = json.loads(spec(UUID))
    host.ctk.write_text(json.dumps({**document, "containerEdits": edits}))
    node = host.node()
    assert host.lacks(node) == []
    socket.unlink()
    device = run(node.inspect_host)[0].devices[UUID]
    assert [mount.source for mount in device.common.mounts] == [str(library)]
    library.unlink()
    assert f"{library}: No such file" in host.lacks(node)[0], "not generated again at once"
    host.ctk.write_text(spec(UUID))
    node.generator._min_interval_s = 0
    assert host.lacks(node) == []


def test_missing_control_nodes_are_created_before_a_spec_is_generated(
    host: Host, tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    (tmp_path / "cat.py").write_text(
        "import os, sys\n"
        f"open({str(calls)!r}, 'a').write(' '.join(sys.argv[2:]) + '\\n')\n"
        "if sys.argv[2] == 'system':\n"
        f"    os.symlink('/dev/null', {str(host.dev / 'nvidia-uvm')!r})\n"
        "print(open(sys.argv[1]).read())\n"
    )
    (host.dev / "nvidia-uvm").unlink()
    host.spec.unlink()
    host.ctk.write_text(spec(UUID))
    assert host.lacks() == []
    made, generated = calls.read_text().splitlines()
    root = host.dev.parent
    assert made == (
        f"system create-device-nodes --control-devices --driver-root={root} --dev-root={root}"
    )
    assert generated.startswith("cdi generate ")


def test_control_nodes_that_cannot_be_created_are_reported_with_the_remedy(
    host: Host, tmp_path: Path
) -> None:
    (tmp_path / "cat.py").write_text(
        "import sys\n"
        "if sys.argv[2] == 'system':\n"
        "    sys.exit('no module')\n"
        "print(open(sys.argv[1]).read().replace('nvidia-uvm', 'other'))\n"
    )
    (host.dev / "nvidia-uvm").unlink()
    host.spec.unlink()
    host.ctk.write_text(spec(UUID))
    (problem, *_) = host.lacks()
    assert "cannot create them" in problem and "no module" in problem
    assert "run nvidia-modprobe -c 0 -u on the host" in problem
