"""What queues.enabled adds to an installation."""

from __future__ import annotations

import pytest

from tests.chart.rendering import command, keys, objects, one

pytestmark = pytest.mark.cluster

_CRD = ("CustomResourceDefinition", "queues.scheduling.run.ai")
_ON = {"queues": {"enabled": True}}


def test_queues_are_off_by_default() -> None:
    assert not {name for _, name in keys(objects()) if "queues" in name or "sizes" in name}
    assert "--queues" not in command(objects(), "Deployment", "gpuslice-scheduler", 1)


def test_kais_definition_is_installed_and_outlives_the_installation() -> None:
    rendered = objects(_ON)
    assert "--queues" in command(rendered, "Deployment", "gpuslice-scheduler", 1)
    crd = one(rendered, *_CRD)
    assert crd["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    (version,) = crd["spec"]["versions"]
    assert (version["name"], version["subresources"]) == ("v2", {"status": {}})


def test_kais_definition_can_be_omitted() -> None:
    rendered = objects({"queues": {"enabled": True, "crd": False}})
    assert "--queues" in command(rendered, "Deployment", "gpuslice-scheduler", 1)
    assert _CRD not in keys(rendered)
