"""The object that KAI's users query, installed by Helm into a real API server."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest
import yaml

from gpuslice.contract import names
from lab.cluster.controlplane import ControlPlane
from tests.cluster.programs import helm, run_in_pod
from tools import chart

pytestmark = pytest.mark.cluster

_PARTS: Final = (
    *("Chart.yaml", "values.yaml", "values.schema.json", "files/kai_config.py"),
    *("templates/_helpers.tpl", "templates/kai-config.yaml"),
)
_DEFINITION: Final = "customresourcedefinition/configs.kai.scheduler"
_RELEASE: Final = "part"
_ON: Final = "--set=global.gpuSharing=true"


@pytest.fixture
def run(control_plane: ControlPlane) -> Iterator[Callable[..., str]]:
    yield partial(helm, control_plane)
    control_plane.try_kubectl("delete", _DEFINITION)


@pytest.fixture
def part(tmp_path: Path) -> str:
    """Return a chart of only the templates for KAI's object. Uninstalling the whole chart would
    need nodes, which this cluster lacks."""
    directory = tmp_path / "chart"
    for each in _PARTS:
        (directory / each).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(chart.CHART / each, directory / each)
    return str(directory)


def gpu_sharing(plane: ControlPlane) -> str:
    """Return what the query in KAI's guide prints, or "" where the object does not exist."""
    query = ("get", "config", "-n", "kai-scheduler", "kai-config", "--ignore-not-found")
    return plane.kubectl(*query, "-o", "jsonpath={.spec.admission.gpuSharing}")


def run_job(plane: ControlPlane, hooks: str, account: Path) -> None:
    """Run the hook Job's program in a process with the Job's rights, because no controller runs."""
    found = list(yaml.safe_load_all(hooks))
    (job,) = (each for each in found if each["kind"] == "Job")
    rights = [each for each in found if each["kind"] not in ("Job", "Config")]
    plane.apply_json(*rights)
    pod = job["spec"]["template"]["spec"]
    asked = ("create", "token", "-n", job["metadata"]["namespace"], pod["serviceAccountName"])
    token = plane.kubectl(*asked).strip()
    python, option, program, written = pod["containers"][0]["command"]
    assert (python, option) == ("python", "-c")
    for _ in range(2):
        done = run_in_pod(plane, account, token, program, written)
        assert (done.returncode, done.stderr) == (0, "")
    listed = {"apiVersion": "v1", "kind": "List", "items": rights}
    plane.kubectl("delete", "-f", "-", given=json.dumps(listed))


def test_the_guides_query(
    control_plane: ControlPlane, run: Callable[..., str], part: str, tmp_path: Path
) -> None:
    """The query works after installation, upgrades and removal of the chart."""
    run("install", _RELEASE, part, _ON, "--no-hooks")
    run_job(control_plane, run("get", "hooks", _RELEASE), tmp_path / "account")
    assert gpu_sharing(control_plane) == "true"
    run("upgrade", _RELEASE, part, "--set=global.gpuSharing=false")
    assert gpu_sharing(control_plane) == ""
    run("upgrade", _RELEASE, part, _ON)
    assert gpu_sharing(control_plane) == "true"
    run("uninstall", _RELEASE)
    assert gpu_sharing(control_plane) == ""

    # Make the definition and the object as KAI's own chart leaves them.
    control_plane.kubectl("label", _DEFINITION, f"{names.LABEL_PART_OF}-")
    metadata = {"name": "kai-config", "labels": {names.LABEL_PART_OF: "kai-scheduler"}}
    spec = {"admission": {"gpuSharing": False}}
    kais = {"apiVersion": "kai.scheduler/v1", "kind": "Config", "metadata": metadata, "spec": spec}
    control_plane.kubectl("create", "-f", "-", given=json.dumps(kais))
    queried = ("get", "config/kai-config", _DEFINITION, "-o", "json")
    before = control_plane.kubectl(*queried)
    run("install", _RELEASE, part, _ON)
    run("uninstall", _RELEASE)
    assert control_plane.kubectl(*queried) == before
