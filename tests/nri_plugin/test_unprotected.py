"""Missing protection: NVIDIA's runtime as the default, read from the bundles that containerd
wrote."""

from __future__ import annotations

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
    if found:
        assert program in text and f"set {ACCEPT} = false in /etc/" in text


def test_where_no_sandbox_runs_nothing_is_known(tmp_path: Path) -> None:
    assert unprotected.problem(tmp_path, [], tmp_path) == ""


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
def test_who_gets_gpus(handler: str, value: str, by_default: bool, all_of_them: bool) -> None:
    env = ["PATH=/bin", f"NVIDIA_VISIBLE_DEVICES={value}"]
    assert unprotected.gets_all(handler, env, by_default) == all_of_them
