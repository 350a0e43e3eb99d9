"""The doctor on a node with a real containerd.

A healthy node has no finding. Then each test breaks one thing, and the doctor names it with a
remedy.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from lab.node.lab import Lab
from tests.support import until

from .scene import agent_with

pytestmark = pytest.mark.node

HOST_OF_THE_LAB = {"root", "run-dir", "device-plugins"}
"""The doctor rightly warns of these, because the lab has a PID namespace of its own, no tmpfs for
its run directory, and no kubelet."""


class Patient:
    """A healthy node as the doctor's flags describe it. A test breaks one thing of it."""

    def __init__(self, lab: Lab, directory: Path) -> None:
        self.lab, self.directory = lab, directory
        self.flags: dict[str, str | Path] = {
            "--nri-socket": lab.containerd.paths.nri_socket,
            "--containerd-state": lab.containerd.paths.state,
            "--run-dir": lab.run_dir,
            "--library": lab.library,
            "--cdi-dir": lab.sim_dir / "cdi",
            "--http": f"unix:{lab.agent_http}",
            "--kubelet-dir": directory / "kubelet",
            "--nvidia-config": directory / "nvidia.toml",
            "--nvidia-ctk": "off",
        }
        self.environment = lab.driver_environment()

    def run(self, *more: str) -> Any:
        words = [str(word) for pair in self.flags.items() for word in pair]
        command = [sys.executable, "-m", "nri_plugin", "doctor", *words, *more]
        return self.lab.namespace.run(command, self.environment)

    def examined(self) -> tuple[int, Mapping[str, Mapping[str, str]]]:
        """Run the doctor, and return its exit status and its findings by check."""
        done = self.run("--json")
        found = json.loads(done.stdout)
        assert found["ok"] is (done.returncode == 0)
        return done.returncode, {each["check"]: each for each in found["checks"]}

    def configure(self, after: str) -> None:
        """Change containerd's configuration, which the doctor gets from containerd's own dump."""
        text = (self.lab.directory / "containerd.toml").read_text()
        assert "disable = false" in text
        self.flags["--containerd-config"] = self.directory / "containerd.toml"
        (self.directory / "containerd.toml").write_text(text.replace("disable = false", after))

    def fill_run_directory(self) -> None:
        """Use a run directory on a small tmpfs, which is visible only in the lab."""
        place = self.flags["--run-dir"] = self.directory / "run"
        place.mkdir()
        command: list[str | Path] = ["mount", "-t", "tmpfs", "-o", "size=64k", "test", place]
        assert self.lab.namespace.run(command).returncode == 0


@pytest.fixture
def patient(lab: Lab, tmp_path: Path) -> Iterator[Patient]:
    lab.wait_until(lambda: lab.times_ready() > 0, "the agent")
    yield Patient(lab, tmp_path)
    lab.namespace.run(["umount", tmp_path / "run"])


def test_the_doctor_finds_no_problem_on_a_healthy_node(patient: Patient) -> None:
    status, found = patient.examined()
    assert status == 0, found
    unwell = {check for check, finding in found.items() if finding["level"] != "ok"}
    assert unwell <= HOST_OF_THE_LAB
    assert found["runtime"]["found"] == f"containerd v{patient.lab.release.version}"
    assert found["nri-socket"]["found"].startswith("containerd listens at ")
    lines = patient.run().stdout.splitlines()
    assert "ok    nri: NRI is on, and plugins may connect" in lines


def test_the_doctor_changes_nothing(patient: Patient) -> None:
    """The doctor changes no session, file or log of the agent. Log lines of the agent's watch do
    not count: on a busy machine the agent may be late, and then reports that it is ready again."""
    lab = patient.lab

    def state() -> object:
        places: list[str | Path] = ["find", lab.run_dir, lab.store_dir, lab.sim_dir / "cdi"]
        lines = lab.agent_log.read_text().splitlines()
        logged = [line for line in lines if "logger=nri_plugin.host.watch" not in line]
        files = lab.namespace.run(places).stdout.split()
        return lab.times_ready(), files, lab.agent_ready_line(), logged

    until(lambda: "msg=ready" in lab.agent_log.read_text(), "the agent has logged its start")
    before = state()
    patient.examined()
    assert state() == before


BROKEN: Mapping[str, tuple[Callable[[Patient], object], str, str, str, str]] = {
    "NRI off": (
        lambda patient: patient.configure("disable = true"),
        *("nri", "fail", "NRI is off in ", "disable = false"),
    ),
    "a broken configuration": (
        lambda patient: patient.configure("disable = "),
        *("nri", "warn", "the runtime's configuration is not known", "containerd"),
    ),
    "no driver": (
        lambda patient: patient.environment.update({"LD_LIBRARY_PATH": ""}),
        *("driver", "fail", "NVML cannot list the GPUs", "nvidia-smi"),
    ),
    "no CDI spec": (
        lambda patient: patient.flags.update({"--cdi-dir": patient.directory / "none"}),
        *("cdi", "fail", "has no device of its name", "nvidia-ctk cdi generate"),
    ),
    "a full run directory": (
        Patient.fill_run_directory,
        *("run-dir", "fail", "64 KiB", "free space"),
    ),
    "no agent": (
        lambda patient: patient.flags.update({"--http": f"unix:{patient.directory / 'none'}"}),
        *("agent", "warn", "it does not respond", "start it"),
    ),
}
"""One fault for each kind of thing that the doctor inspects, with the finding that it causes."""


@pytest.mark.parametrize("broken", BROKEN)
def test_the_doctor_finds_what_is_broken(patient: Patient, broken: str) -> None:
    breaks, check, level, found, do = BROKEN[broken]
    breaks(patient)
    status, findings = patient.examined()
    assert status == (1 if level == "fail" else 0)
    finding = findings[check]
    assert finding["level"] == level and found in finding["found"] and do in finding["do"], finding


def test_the_doctor_reports_why_an_agent_is_not_ready(patient: Patient) -> None:
    with agent_with(patient.lab, "--nvidia-ctk", "off", cdi_dir=patient.directory):
        found = patient.examined()[1]["agent"]
        assert found["level"] == "fail" and "has no CDI device" in found["found"]
