"""CDI specs that the inspection of a node generates, renews and withdraws: in place of which ones,
and when again."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from nri_plugin.host import watch as module
from nri_plugin.host.cdi_generator import FILE
from tests.nri_plugin.cdi_nodes import NODES
from tests.nri_plugin.host.watch_scene import (
    GPU,
    OTHER,
    TWO,
    UUID,
    Host,
    ask,
    broken,
    host,
    inspect,
    run,
    spec,
)

__all__ = ["host"]


def test_a_gpu_with_an_unusable_generated_spec_leaves_the_others_ready(host: Host) -> None:
    """They are ready before nvidia-ctk describes it in a usable way."""
    host.show(*TWO)
    host.generates(broken(spec(UUID, OTHER), UUID))
    node = host.node()
    for _ in range(3):
        found = run(lambda: inspect(node))
        assert (found.lacks, list(found.unusable)) == ([], [UUID])
    node.generator.min_interval_s = 0
    host.ctk.write_text(spec(UUID, OTHER))
    assert run(lambda: inspect(node)) == module.NodeProblems([], {})


def test_the_problem_names_why_no_spec_was_generated(host: Host) -> None:
    host.spec.write_text("{")
    (problem,) = host.lacks()
    assert problem.startswith(f"{UUID} has no CDI device (unreadable: {host.spec}: ")
    assert "none was generated: FileNotFoundError: [Errno 2]" in problem


def test_a_generated_spec_gives_way_to_a_second_description(tmp_path: Path) -> None:
    """A spec that the runtime must find lies in the directory of other specs."""
    host = Host(tmp_path, "--whole-gpus", "any")
    node = host.node()
    written = host.spec.read_text()
    host.generates(spec(UUID))
    assert host.lacks(node) == []
    assert os.listdir(host.cdi) == [FILE]
    host.spec.write_text(written)
    assert host.lacks(node) == []
    assert os.listdir(host.cdi) == [host.spec.name]


@pytest.mark.parametrize("name", ["a.json", "nvidia.json"])
def test_a_second_description_of_one_gpu_leaves_the_generated_ones_of_the_others(
    tmp_path: Path, name: str
) -> None:
    """name: sorted before or after the generated file."""
    host = Host(tmp_path, "--whole-gpus", "any")
    node = host.node()
    host.show(*TWO)
    host.generates(spec(UUID, OTHER))
    assert host.lacks(node) == []
    (host.cdi / name).write_text(spec(UUID))
    for _ in range(3):
        assert run(lambda: inspect(node)) == module.NodeProblems([], {})
    generated = json.loads((host.cdi / FILE).read_text())
    assert [device["name"] for device in generated["devices"]] == [OTHER]


def test_an_earlier_agents_spec_is_renewed_or_removed(host: Host) -> None:
    host.generates(spec(UUID))
    assert host.lacks() == []
    host.ctk.write_text(spec(UUID).replace("/dev/zero", "/dev/full"))
    run(host.node().renew_specs)
    assert "/dev/full" in host.generated.read_text()
    host.ctk.unlink()
    run(host.node().renew_specs)
    assert not host.generated.exists()
    run(host.node().renew_specs)


def test_a_renewal_that_timed_out_is_repeated(host: Host) -> None:
    host.generates(spec(UUID))
    node = host.node()
    assert host.lacks(node) == []
    host.ctk.write_text(spec(UUID).replace("/dev/zero", "/dev/full"))
    host.show(GPU, driver="2")
    node.generator.min_interval_s = 0
    gate = threading.Event()

    def held_up() -> None:
        gate.wait()

    async def renew() -> None:
        await ask(node)
        node._worker.post(held_up)
        with pytest.raises(TimeoutError):
            await node.renew_specs()
        gate.set()
        await node.renew_specs()

    run(renew)
    assert "/dev/full" in host.generated.read_text()


def test_another_driver_renews_the_generated_spec(host: Host) -> None:
    """The agent needs no restart. It does not repeat a completed query for the same driver."""
    host.generates(spec(UUID))
    node = host.node()
    node.generator.min_interval_s = 0
    assert host.lacks(node) == []
    for driver, path in (("1", "/dev/zero"), ("2", "/dev/full")):
        host.show(GPU, driver=driver)
        host.ctk.write_text(spec(UUID).replace("/dev/zero", "/dev/full"))
        run(lambda: ask(node))
        assert host.lacks(node) == []
        assert path in host.generated.read_text()


def test_a_generated_spec_replaces_an_unusable_one_of_another_program(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    """It does so until the other one is usable."""
    host.show(*TWO)
    whole = spec(UUID, OTHER)
    host.spec.write_text(broken(whole, UUID))
    host.ctk.write_text(whole)
    node = host.node()
    for _ in range(3):
        assert run(lambda: inspect(node)) == module.NodeProblems([], {})
    specs, _ = run(lambda: node.work(node.inspect_host))
    assert {name: device.file for name, device in specs.devices.items()} == {
        UUID: str(host.generated),
        OTHER: str(host.spec),
    }
    replaced = [line for line in caplog.messages if "CDI spec replaced" in line]
    assert len(replaced) == 1 and "/dev/nvidia-gone: No such file" in replaced[0]
    host.spec.write_text(whole)
    specs, _ = run(lambda: node.work(node.inspect_host))
    assert specs.devices[UUID].file == str(host.spec)


def test_a_generated_spec_is_renewed_when_a_file_of_it_vanishes(host: Host, tmp_path: Path) -> None:
    """A library: the driver was replaced. What compute does not need is left out at once."""
    library, socket = tmp_path / "libcuda.so.1", tmp_path / "socket"
    edits: Any = {"deviceNodes": [*NODES]}
    for file in (library, socket):
        file.touch()
    edits["mounts"] = [{"hostPath": str(f), "containerPath": str(f)} for f in (library, socket)]
    host.generates(json.dumps({**json.loads(spec(UUID)), "containerEdits": edits}))
    node = host.node()
    assert host.lacks(node) == []
    socket.unlink()
    device = run(lambda: node.work(node.inspect_host))[0].devices[UUID]
    assert [mount.source for mount in device.common.mounts] == [str(library)]
    library.unlink()
    assert f"{library}: No such file" in host.lacks(node)[0], "not generated again at once"
    host.ctk.write_text(spec(UUID))
    node.generator.min_interval_s = 0
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
    host.generates(spec(UUID))
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
    host.generates(spec(UUID))
    (problem, *_) = host.lacks()
    assert "cannot create them" in problem and "no module" in problem
    assert "run nvidia-modprobe -c 0 -u on the host" in problem
