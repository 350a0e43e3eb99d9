"""NVIDIA's runtime, found in the bundles that containerd wrote, and its configuration."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nri_plugin.host import bundle, nvidia_runtime
from nri_plugin.policy.nvidia import Toolkit

NVIDIA = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
ACCEPT = "accept-nvidia-visible-devices-envvar-when-unprivileged"
MOUNTS = "accept-nvidia-visible-devices-as-volume-mounts"


def _sandbox(state: Path, name: str, program: str) -> Path:
    made = bundle.directory(state, name)
    made.mkdir(parents=True)
    (made / "runtime").write_text(program)
    return made / "runtime"


@pytest.mark.parametrize(
    ("program", "theirs"),
    [
        (NVIDIA, True),
        ("/usr/bin/nvidia-container-runtime.cdi", True),
        ("nvidia-container-runtime", True),
        ("/usr/bin/runc", False),
        ("", False),
    ],
)
def test_the_program_of_a_sandbox(tmp_path: Path, program: str, theirs: bool) -> None:
    _sandbox(tmp_path, "sandbox", program)
    assert nvidia_runtime.default(tmp_path, ["gone", "sandbox"]) == program
    assert nvidia_runtime.runs(tmp_path, "sandbox") == theirs
    assert not nvidia_runtime.runs(tmp_path, "gone")


def test_the_newest_sandbox_shows_the_default(tmp_path: Path) -> None:
    """The default may have become NVIDIA's runtime while pods of the one before run."""
    for order, (sandbox_id, program) in enumerate((("old", "/usr/bin/runc"), ("new", NVIDIA))):
        os.utime(_sandbox(tmp_path, sandbox_id, program), (order, order))
    for ids in (["old", "new"], ["new", "old"]):
        assert nvidia_runtime.default(tmp_path, ids) == NVIDIA
    assert nvidia_runtime.default(tmp_path, ["old"]) == "/usr/bin/runc"


@pytest.mark.parametrize(
    ("place", "config", "accepted"),
    [
        ("etc", "", Toolkit()),
        ("etc", f"{ACCEPT} = true\n[nvidia-container-cli]\n", Toolkit()),
        ("etc", f"{ACCEPT} = false\n", Toolkit(of_unprivileged=False)),
        ("usr/local/nvidia/toolkit/.config", f"{ACCEPT} = false", Toolkit(of_unprivileged=False)),
        ("etc", f"{MOUNTS} = true\n", Toolkit(of_mounts=True)),
        ("etc", 'swarm-resource = "ANY"\n', Toolkit(other_variables="ANY")),
        ("etc", "not TOML", Toolkit()),
        ("opt", f"{ACCEPT} = false\n", Toolkit()),
    ],
)
def test_the_toolkits_configuration(
    tmp_path: Path, place: str, config: str, accepted: Toolkit
) -> None:
    file = tmp_path / place / "nvidia-container-runtime/config.toml"
    file.parent.mkdir(parents=True)
    file.write_text(config)
    assert nvidia_runtime.toolkit(NVIDIA, tmp_path) == accepted


def test_other_variables_are_a_problem_of_the_node(tmp_path: Path) -> None:
    def problem(toolkit: Toolkit) -> str:
        return nvidia_runtime.problem(NVIDIA, toolkit, tmp_path)

    assert problem(Toolkit()) == ""
    assert problem(Toolkit(of_unprivileged=False, other_variables="ANY")) == ""
    assert "remove swarm-resource from /etc/nvidia-container-runtime/config.toml" in problem(
        Toolkit(other_variables="ANY")
    )
