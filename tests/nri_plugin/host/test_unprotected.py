"""Missing protection: NVIDIA's runtime as the default, read from the bundles that containerd
wrote."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nri_plugin.host import bundle, unprotected

NVIDIA = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
ACCEPT = "accept-nvidia-visible-devices-envvar-when-unprivileged"


@pytest.mark.parametrize(
    ("program", "place", "config", "found"),
    [
        (NVIDIA, "", "", True),
        (NVIDIA, "etc", f"{ACCEPT} = true\n[nvidia-container-cli]\n", True),
        (NVIDIA, "etc", f"{ACCEPT} = false\n", False),
        (NVIDIA, "usr/local/nvidia/toolkit/.config", f"{ACCEPT} = false\n", False),
        (NVIDIA, "etc", "not TOML", True),
        ("/usr/bin/nvidia-container-runtime.cdi", "", "", True),
        ("/usr/bin/runc", "", "", False),
        ("", "", "", False),
    ],
)
def test_the_default_runtime(
    tmp_path: Path, program: str, place: str, config: str, found: bool
) -> None:
    host, state = tmp_path / "host", tmp_path / "state"
    host.mkdir()
    if place:
        file = host / place / "nvidia-container-runtime/config.toml"
        file.parent.mkdir(parents=True)
        file.write_text(config)
    sandbox = bundle.of(state, "sandbox")
    sandbox.mkdir(parents=True)
    (sandbox / "runtime").write_text(program)
    text = unprotected.problem(state, ["gone", "sandbox"], host)
    assert bool(text) == found
    if text:
        assert program in text and f"set {ACCEPT} = false in /etc/" in text


def test_without_a_sandbox_no_problem_is_reported(tmp_path: Path) -> None:
    assert unprotected.problem(tmp_path, [], tmp_path) is None


@pytest.mark.parametrize(
    ("handler", "value", "by_default", "all_of_them"),
    [
        ("", "all", True, True),
        ("", "GPU-1", True, True),
        ("", "all", False, False),
        ("", "void", True, False),
        ("nvidia", "all", False, True),
        ("runc", "all", True, False),
    ],
)
def test_which_containers_get_gpus(
    handler: str, value: str, by_default: bool, all_of_them: bool
) -> None:
    env = ["PATH=/bin", f"NVIDIA_VISIBLE_DEVICES={value}"]
    assert unprotected.gets_all(handler, env, by_default) == all_of_them


def test_the_newest_sandbox_shows_the_default(tmp_path: Path) -> None:
    """The default may have become NVIDIA's runtime while pods of the one before run."""
    for order, (sandbox_id, program) in enumerate((("old", "/usr/bin/runc"), ("new", NVIDIA))):
        sandbox = bundle.of(tmp_path, sandbox_id)
        sandbox.mkdir(parents=True)
        (sandbox / "runtime").write_text(program)
        os.utime(sandbox / "runtime", (order, order))
    for ids in (["old", "new"], ["new", "old"]):
        assert "default runtime is" in (unprotected.problem(tmp_path, ids, tmp_path) or "")
    assert unprotected.problem(tmp_path, ["old"], tmp_path) == ""
