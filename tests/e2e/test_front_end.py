"""A cluster whose nodes serve claims from the start, without a scheduler of gpuslice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuslice.contract import names
from lab.cluster.manifests import KOORDINATOR, STOCK
from lab.cluster.product import GPU_NODE_LABEL, RELEASE
from tests.e2e.whole import running
from tests.support import ROOT

pytestmark = pytest.mark.e2e


def test_koordinators_pod_runs_with_its_limit_on_kube_scheduler_as_it_comes(
    build_dir: Path,
) -> None:
    """The pod is Koordinator's example, unmodified but for its schedulerName."""
    assert build_dir.is_dir()
    text = (ROOT / "docs/examples/koordinator/pod-example.yaml").read_text()
    with running("2x23040Mi", bare=True) as whole:
        whole.kubectl("label", "node", whole.state["node"], GPU_NODE_LABEL)
        whole.install(f"--set=frontEnd={names.FRONT_END_CLAIMS}")
        deployments = whole.kubectl("get", "deployments", "-A", "--output=name").split()
        assert deployments == [f"deployment.apps/{names.CLAIM_TEMPLATES}"]
        whole.kubectl("create", "-f", "-", given=text.replace(KOORDINATOR, STOCK))
        whole.ready("pod-example")
        probed = json.loads(whole.inside("pod-example", "cuda-probe"))
        # All of the limit can be allocated, and one byte more is CUDA_ERROR_OUT_OF_MEMORY.
        assert (probed["total"], probed["filled"], probed["more"]) == (11520 << 20, 0, 2)
        assert "50" in whole.inside("pod-example", f"echo ${names.ENV_CORE_LIMIT}")
        whole.helm("test", RELEASE, "--timeout=100s")
