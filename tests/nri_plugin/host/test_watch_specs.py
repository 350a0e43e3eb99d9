"""CDI specs that the inspection of a node generates, renews and withdraws."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from nri_plugin.host import watch as module
from nri_plugin.host.cdi_generator import FILE
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
    host.spec.unlink()
    host.show(*TWO)
    host.ctk.write_text(broken(spec(UUID, OTHER), UUID))
    node = host.node()
    for _ in range(3):
        found = run(lambda: inspect(node))
        assert (found.lacks, list(found.unusable)) == ([], [UUID])
    node.generator._min_interval_s = 0
    host.ctk.write_text(spec(UUID, OTHER))
    assert run(lambda: inspect(node)) == module.Found([], {})


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
    host.spec.unlink()
    host.ctk.write_text(spec(UUID))
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
    host.spec.unlink()
    host.show(*TWO)
    host.ctk.write_text(spec(UUID, OTHER))
    assert host.lacks(node) == []
    (host.cdi / name).write_text(spec(UUID))
    for _ in range(3):
        assert run(lambda: inspect(node)) == module.Found([], {})
    generated = json.loads((host.cdi / FILE).read_text())
    assert [device["name"] for device in generated["devices"]] == [OTHER]


def test_an_earlier_agents_spec_is_renewed_or_removed(host: Host) -> None:
    host.spec.unlink()
    host.ctk.write_text(spec(UUID))
    assert host.lacks() == []
    generated = host.settings.generated_cdi_dir / FILE
    host.ctk.write_text(spec(UUID).replace("/dev/zero", "/dev/full"))
    run(host.node().renew_specs)
    assert "/dev/full" in generated.read_text()
    host.ctk.unlink()
    run(host.node().renew_specs)
    assert not generated.exists()
    run(host.node().renew_specs)


def test_a_renewal_that_timed_out_is_repeated(host: Host) -> None:
    host.spec.unlink()
    host.ctk.write_text(spec(UUID))
    node = host.node()
    assert host.lacks(node) == []
    host.ctk.write_text(spec(UUID).replace("/dev/zero", "/dev/full"))
    host.show(GPU, driver="2")
    node.generator._min_interval_s = 0
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
    assert "/dev/full" in (host.settings.generated_cdi_dir / FILE).read_text()


def test_another_driver_renews_the_generated_spec(host: Host) -> None:
    """The agent needs no restart. It does not repeat a completed query for the same driver."""
    host.spec.unlink()
    host.ctk.write_text(spec(UUID))
    node = host.node()
    node.generator._min_interval_s = 0
    assert host.lacks(node) == []
    generated = host.settings.generated_cdi_dir / FILE
    for driver, path in (("1", "/dev/zero"), ("2", "/dev/full")):
        host.show(GPU, driver=driver)
        host.ctk.write_text(spec(UUID).replace("/dev/zero", "/dev/full"))
        run(lambda: ask(node))
        assert host.lacks(node) == []
        assert path in generated.read_text()
