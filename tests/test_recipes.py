"""The recipes work: in a copy of the tree, each change applies and passes its checks."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.support import ROOT, run

_FOLDERS = ("gpuslice", "docs", "manifests", "nri_plugin", "scheduler", "tests", "lab")
_FOLDERS_OF_TOOLS = ("tools", "simgpu", "shim", "bench", "traces")

_REFUSED = """
from unittest.mock import Mock
from nri_plugin.policy.checks import CHECKS, loaded_first
from nri_plugin.policy.model import Container
container = Container("id", "main", env=("CUDA_DEVICE_WAITS_ON_EXCEPTION=1",))
assert loaded_first in CHECKS
try:
    loaded_first(Mock(container=container))
except Exception as refused:
    print(refused)
"""
_COUNTED = """
from unittest.mock import Mock
import asyncio
from gpuslice.kube.errors import KubeError
from scheduler.metrics import Metrics
from scheduler.requeuer import Requeuer
metrics, kube = Metrics(), Mock()
kube.patch.side_effect = KubeError(404, "NotFound", "")
requeuer = Requeuer(Mock(), Mock(), kube, metrics, lambda: 0.0)
asyncio.run(requeuer._write(Mock(), {}, "sample"))
print(metrics.render().decode())
"""
_ASKED = """
from scheduler.kubernetes.requests import request
raw = {"metadata": {"annotations": {"example.com/gpu-eighths": "3"}}}
raw["spec"] = {"containers": [{"name": "main"}]}
print(request(raw, frozenset({"koordinator", "eighths"})))
from tools import chart
assert "--dialects=koordinator,eighths" in chart.render("--set=dialects.eighths.enabled=true")
"""
_READ = """
from gpuslice.contract.grants import decode
print(decode('{"v":2,"containers":{}}'))
"""

RECIPES = {
    "Add a refusal": (_REFUSED, "environment CUDA_DEVICE_WAITS_ON_EXCEPTION: invalid value '1'"),
    "Add a metric": (_COUNTED, "gpuslice_scheduler_requeue_failures_total 1.0"),
    "Add a dialect": (_ASKED, "Fraction(3, 8)"),
    "Change a format": (_READ, "{}"),
}


@pytest.mark.cluster  # for Helm
@pytest.mark.parametrize("title", RECIPES)
def test_a_recipe_works(title: str, tmp_path: Path) -> None:
    text = (ROOT / "docs/recipes/README.md").read_text()
    section = text[text.index(f"\n## {title}\n") + 1 :].split("\n## ")[0]
    skipped = shutil.ignore_patterns("__pycache__", "data", "corpus", "driver", "results")
    for folder in (*_FOLDERS, *_FOLDERS_OF_TOOLS):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=skipped)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    program, expected = RECIPES[title]
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def output(*command: str) -> str:
        done = run(*command, cwd=tmp_path, env=environ)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    (change,) = re.findall(r"\]\(\.\./\.\./(tests/recipes/\w+\.diff)\)", section)
    output("git", "apply", "-p0", "-C1", str(ROOT / change))
    for command in re.findall(r"^\$ python (.*)$", section, re.MULTILINE):
        output("bash", "-c", f"{sys.executable} {command}")
    assert expected in output(sys.executable, "-c", program)
