"""The object that KAI's users query, installed by Helm into a real API server."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from gpuslice.contract import names
from lab.cluster.controlplane import ControlPlane
from tools import chart, kubernetes

pytestmark = pytest.mark.cluster

Json = dict[str, Any]
Helm = Callable[..., str]

_PARTS: Final = (
    *("Chart.yaml", "values.yaml", "values.schema.json", "files/kai_config.py"),
    *("templates/_helpers.tpl", "templates/kai-config.yaml"),
)
_DEFINITION: Final = "customresourcedefinition/configs.kai.scheduler"
_ON: Final = "--set=global.gpuSharing=true"
_OFF: Final = "--set=global.gpuSharing=false"
_RELEASE: Final = "part"


@pytest.fixture
def run(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Helm]:
    """Helm, with a chart of this part alone: the whole one needs nodes to uninstall it."""
    directory = tmp_path / "chart"
    for part in _PARTS:
        (directory / part).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(chart.CHART / part, directory / part)

    def call(*words: str) -> str:
        where = (f"--namespace={names.NAMESPACE}", f"--kubeconfig={control_plane.kubeconfig()}")
        files = [str(directory)] if words[0] in ("install", "upgrade") else []
        verb, *options = words
        command = [str(kubernetes.ensure_helm()), *verb.split(), _RELEASE, *files, *where, *options]
        done = subprocess.run(command, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    yield call
    control_plane.try_kubectl("delete", _DEFINITION)


def gpu_sharing(plane: ControlPlane) -> str:
    """The output of the query of KAI's guide; "" where there is no object."""
    query = ("get", "config", "-n", "kai-scheduler", "kai-config", "--ignore-not-found")
    return plane.kubectl(*query, "-o", "jsonpath={.spec.admission.gpuSharing}")


def run_job(plane: ControlPlane, hooks: list[Json], account: Path) -> None:
    """Runs its program here, with the rights of its account: no controller runs Jobs."""
    (job,) = (each for each in hooks if each["kind"] == "Job")
    others = [each for each in hooks if each["kind"] not in ("Job", "Config")]
    plane.apply_json(*others)
    pod = job["spec"]["template"]["spec"]
    account.mkdir()
    (account / "ca.crt").write_bytes(plane.ca.read_bytes())
    namespace = job["metadata"]["namespace"]
    token = plane.kubectl("create", "token", "-n", namespace, pod["serviceAccountName"])
    (account / "token").write_text(token.strip())
    _, *options, program, written = pod["containers"][0]["command"]
    program = program.replace("/var/run/secrets/kubernetes.io/serviceaccount", str(account))
    host, _, port = plane.server.removeprefix("https://").rpartition(":")
    environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    command = [sys.executable, *options, program, written]
    for _ in range(2):
        done = subprocess.run(command, env=environ, text=True, capture_output=True)
        assert (done.returncode, done.stderr) == (0, "")
    listed = {"apiVersion": "v1", "kind": "List", "items": others}
    plane.kubectl("delete", "-f", "-", given=json.dumps(listed))


def test_the_guides_query(control_plane: ControlPlane, run: Helm, tmp_path: Path) -> None:
    """The definition stays, and no object of it does."""
    run("install", _ON, "--no-hooks")
    run_job(control_plane, list(yaml.safe_load_all(run("get hooks"))), tmp_path / "account")
    assert gpu_sharing(control_plane) == "true"
    run("upgrade", _OFF)
    assert gpu_sharing(control_plane) == ""
    run("upgrade", _ON)
    assert gpu_sharing(control_plane) == "true"
    run("uninstall")
    assert gpu_sharing(control_plane) == ""

    # As KAI's chart leaves it.
    control_plane.kubectl("label", _DEFINITION, "app.kubernetes.io/part-of-")
    metadata = {"name": "kai-config", "labels": {"app.kubernetes.io/part-of": "kai-scheduler"}}
    spec = {"admission": {"gpuSharing": False}}
    kais = {"apiVersion": "kai.scheduler/v1", "kind": "Config", "metadata": metadata, "spec": spec}
    control_plane.kubectl("create", "-f", "-", given=json.dumps(kais))
    queried = ("get", "config/kai-config", _DEFINITION, "-o", "json")
    before = control_plane.kubectl(*queried)
    run("install", _ON)
    run("uninstall")
    assert control_plane.kubectl(*queried) == before
