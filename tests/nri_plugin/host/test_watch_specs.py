"""CDI specs that the inspection of a node generates, renews and withdraws."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from nri_plugin.host.cdi_generator import FILE
from nri_plugin.host.watch import NodeProblems
from tests.nri_plugin.cdi_nodes import NODES
from tests.nri_plugin.host.test_watch import GPU, OTHER, TWO, Host, ask, host, spec
from tests.nri_plugin.host_files import put
from tests.nri_plugin.service_scene import UUID

__all__ = ["host"]

RENEWED = spec(UUID, source="/dev/full")


def test_a_gpu_with_an_unusable_generated_spec_leaves_the_others_ready(host: Host) -> None:
    host.show(*TWO)
    node = host.generates(spec(UUID, OTHER, broken=UUID))
    for _ in range(3):
        found = host.found(node)
        assert (found.lacks, list(found.unusable)) == ([], [UUID])
    node.generator.min_interval_s = 0
    host.ctk.write_text(spec(UUID, OTHER))
    assert host.found(node) == NodeProblems([], {})


def test_the_problem_names_why_no_spec_was_generated(host: Host) -> None:
    host.spec.write_text("{")
    (problem,) = host.lacks()
    assert problem.startswith(f"{UUID} has no CDI device (unreadable: {host.spec}: ")
    assert "none was generated: FileNotFoundError: [Errno 2]" in problem


@pytest.mark.parametrize("name", ["a.json", "nvidia.json"])
def test_a_generated_spec_gives_way_to_a_second_description(tmp_path: Path, name: str) -> None:
    """The other program's file is sorted before or after the generated one."""
    host = Host(tmp_path, "--whole-gpus", "any")
    host.show(*TWO)
    node = host.generates(spec(UUID, OTHER))
    assert host.lacks(node) == []
    assert os.listdir(host.cdi) == [FILE]
    put(host.cdi / name, spec(UUID))
    for _ in range(3):
        assert host.found(node) == NodeProblems([], {})
    generated = json.loads((host.cdi / FILE).read_text())
    assert [device["name"] for device in generated["devices"]] == [OTHER]
    put(host.cdi / name, spec(UUID, OTHER))
    assert host.lacks(node) == []
    assert os.listdir(host.cdi) == [name]


def test_an_earlier_agents_spec_is_renewed_or_removed(host: Host) -> None:
    host.generates(spec(UUID))
    assert host.lacks() == []
    host.ctk.write_text(RENEWED)
    asyncio.run(host.node().renew_specs())
    assert "/dev/full" in host.generated.read_text()
    host.ctk.unlink()
    for settings in ({}, {"nvidia_ctk": ()}):
        put(host.generated, RENEWED)
        for _ in range(2):
            asyncio.run(host.node(**settings).renew_specs())
            assert not host.generated.exists()


def test_another_driver_renews_the_generated_spec(host: Host) -> None:
    """The agent is not restarted. A renewal that timed out is repeated. A completed one is not."""
    node, gate = host.generates(spec(UUID), min_interval_s=0), threading.Event()
    assert host.lacks(node) == []
    host.ctk.write_text(RENEWED)
    asyncio.run(ask(node))
    assert host.lacks(node) == []
    assert "/dev/zero" in host.generated.read_text(), "the driver is the same"
    host.show(GPU, driver="2")

    def held_up() -> None:
        gate.wait()

    async def renew_late() -> None:
        await ask(node)
        node._worker.post(held_up)
        with pytest.raises(TimeoutError):
            await node.renew_specs()
        gate.set()

    asyncio.run(renew_late())
    assert host.lacks(node) == []
    assert "/dev/full" in host.generated.read_text()


def test_a_generated_spec_replaces_an_unusable_one_of_another_program(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    """The generated spec is used until the other program's spec is usable."""
    host.show(*TWO)
    host.spec.write_text(spec(UUID, OTHER, broken=UUID))
    host.ctk.write_text(spec(UUID, OTHER))
    node = host.node()
    for _ in range(3):
        assert host.found(node) == NodeProblems([], {})
    files = {name: device.file for name, device in host.specs(node).devices.items()}
    assert files == {UUID: str(host.generated), OTHER: str(host.spec)}
    (replaced,) = [line for line in caplog.messages if "CDI spec replaced" in line]
    assert "/dev/nvidia-gone: No such file" in replaced
    host.spec.write_text(spec(UUID, OTHER))
    assert host.specs(node).devices[UUID].file == str(host.spec)


def test_a_generated_spec_is_renewed_when_a_file_of_it_vanishes(host: Host, tmp_path: Path) -> None:
    """A lost library means another driver. A file that compute does not need is left out."""
    library, socket = put(tmp_path / "libcuda.so.1"), put(tmp_path / "socket")
    mounts = [{"hostPath": str(f), "containerPath": str(f)} for f in (library, socket)]
    edits: Any = {"deviceNodes": [*NODES], "mounts": mounts}
    host.generates(json.dumps({**json.loads(spec(UUID)), "containerEdits": edits}))
    node = host.node()
    assert host.lacks(node) == []
    socket.unlink()
    device = host.specs(node).devices[UUID]
    assert [mount.source for mount in device.common.mounts] == [str(library)]
    library.unlink()
    host.ctk.write_text(spec(UUID))
    assert f"{library}: No such file" in host.lacks(node)[0], "not generated again at once"
    node.generator.min_interval_s = 0
    assert host.lacks(node) == []


def test_missing_control_nodes_are_made_before_a_spec(host: Host, tmp_path: Path) -> None:
    """Control nodes are device nodes of the driver that no GPU owns, such as /dev/nvidia-uvm. The
    agent reports those that it cannot make, with the remedy."""
    calls, module = tmp_path / "calls", tmp_path / "module"
    host.script.write_text(
        "import os, sys\n"
        f"open({str(calls)!r}, 'a').write(' '.join(sys.argv[2:]) + '\\n')\n"
        "if sys.argv[2] == 'system':\n"
        f"    os.path.exists({str(module)!r}) or sys.exit('no module')\n"
        f"    os.symlink('/dev/null', {str(host.dev / 'nvidia-uvm')!r})\n"
        "print(open(sys.argv[1]).read())\n"
    )
    (host.dev / "nvidia-uvm").unlink()
    node = host.generates(spec(UUID).replace("nvidia-uvm", "other"), min_interval_s=0)
    (problem, *_) = host.lacks(node)
    assert "cannot create them" in problem and "no module" in problem
    assert "run nvidia-modprobe -c 0 -u on the host" in problem
    host.ctk.write_text(spec(UUID))
    module.touch()
    assert host.lacks(node) == []
    made, generated = calls.read_text().splitlines()[-2:]
    roots = f"--driver-root={host.dev.parent} --dev-root={host.dev.parent}"
    assert made == f"system create-device-nodes --control-devices {roots}"
    assert generated.startswith("cdi generate ") and roots in generated
    assert node.driver_root.node_commands(node.generator.command) == (), "all nodes exist"
