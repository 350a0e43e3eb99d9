"""Logs, metrics and probes of a running agent, over a real containerd."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import pages
from lab.node.catalogue import PYTHON_IMAGE
from lab.node.cri import CriError, Process
from lab.node.lab import Lab
from nri_plugin.host.cdi_generator import FILE

from .conftest import GIB, probe

pytestmark = pytest.mark.node

OWN = Process(PYTHON_IMAGE)
STATIC = Process(PYTHON_IMAGE, ("busybox", "sleep", "1000000"))


def get(lab: Lab, page: str) -> tuple[int, str]:
    """A page of the agent's endpoint."""
    return pages.get(lab.agent_http, page)


def sample(lab: Lab, line: str) -> float:
    """The value of one line of the metrics, 0 if it is missing."""
    for each in get(lab, "/metrics")[1].splitlines():
        if each.startswith(line + " "):
            return float(each.rpartition(" ")[2])
    return 0.0


def test_readiness_follows_the_session(lab: Lab) -> None:
    lab.wait_until(lambda: get(lab, "/readyz") == (200, "ok\n"), "the agent to be ready")
    sessions = sample(lab, "gpuslice_nri_sessions_total")
    lab.containerd.stop()
    lab.wait_until(lambda: get(lab, "/readyz")[0] == 503, "the agent to see that containerd went")
    lab.wait_until(lambda: "no process listens" in get(lab, "/readyz")[1], "the reason")
    assert get(lab, "/healthz") == (200, "ok\n")
    assert sample(lab, "gpuslice_nri_session_up") == 0
    lab.containerd.start()
    lab.wait_until(lambda: get(lab, "/readyz")[0] == 200, "the agent to register again")
    lab.cri.version()
    assert sample(lab, "gpuslice_nri_sessions_total") == sessions + 1
    assert sample(lab, 'gpuslice_nri_reconnects_total{cause="ended"}') >= 1


CTK = f"{sys.executable} -m simgpu.nvidia_ctk"


def again(lab: Lab, cdi_dir: Path, *options: str) -> None:
    """Restart the agent with another directory of CDI specs."""
    lab.stop_agent()
    lab.start_agent(cdi_dir=cdi_dir, options=options)


@pytest.fixture
def no_specs(lab: Lab) -> Iterator[Path]:
    """A directory without CDI specs, which containerd reads too; the agent is stopped
    afterwards."""
    yield lab.directory / "cdi"
    lab.stop_agent()
    shutil.rmtree(lab.directory / "cdi")
    (lab.directory / "cdi").mkdir()


def test_by_name_containerd_applies_the_spec_and_the_limit_holds(lab: Lab, no_specs: Path) -> None:
    again(lab, no_specs, "--cdi-by-name", "--nvidia-ctk", CTK)
    lab.wait_until(lambda: get(lab, "/readyz") == (200, "ok\n"), "the agent to be ready")
    assert [each.name for each in no_specs.iterdir()] == [FILE]
    with lab.pod("named", lab.share({"main": [(0, 20 * GIB, 50)]})) as pod:
        container = pod.run("main", OWN)
        assert probe(container).held_to(20 * GIB)
    with lab.pod("ungranted", lab.share({"main": [(0, 20 * GIB, 50)]})) as pod:
        assert not probe(pod.run("other", OWN)).driver


@pytest.fixture
def hooks_rejected(lab: Lab, no_specs: Path) -> Iterator[Path]:
    """A validator that rejects OCI hooks, and a CDI spec that holds one, as NVIDIA's do."""
    file = lab.directory / "containerd.toml"
    before = file.read_text()
    document = json.loads((lab.sim_dir / "cdi" / "nvidia.json").read_text())
    hook = {"hookName": "createContainer", "path": "/bin/true", "args": ["true"]}
    document["containerEdits"]["hooks"] = [hook]
    (no_specs / "nvidia.json").write_text(json.dumps(document))
    lab.containerd.stop()
    file.write_text(
        before.replace("enable = true", "enable = true\nreject_oci_hook_adjustment=true")
    )
    lab.containerd.start()
    lab.cri.version()
    yield no_specs
    lab.stop_agent()
    lab.containerd.stop()
    file.write_text(before)
    lab.containerd.start()
    lab.cri.version()


def test_by_name_a_validator_that_rejects_hooks_is_no_hindrance(
    lab: Lab, hooks_rejected: Path
) -> None:
    again(lab, hooks_rejected)
    rejected = pytest.raises(CriError, match=r"(?i)oci hook")
    with lab.pod("hooked", lab.share({"main": [(0, 20 * GIB, 50)]})) as pod, rejected:
        pod.create("main", OWN)
    again(lab, hooks_rejected, "--cdi-by-name")
    with lab.pod("named", lab.share({"main": [(0, 20 * GIB, 50)]})) as pod:
        assert probe(pod.run("main", OWN)).held_to(20 * GIB)


def test_a_program_that_no_limit_reaches_is_counted(lab: Lab) -> None:
    counted = "gpuslice_limit_not_enforceable_total"
    before = sample(lab, counted)
    with lab.pod("static", lab.share({"main": [(0, 20 * GIB, 50)]})) as pod:
        pod.run("main", STATIC)
    assert sample(lab, counted) == before + 1
