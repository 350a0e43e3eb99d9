"""Each inspection reports a lack of descriptors, and nothing about the file that it was to read."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from nri_plugin.host import cdi_reader, cdi_vendor
from nri_plugin.host.rootfs import Proof
from nri_plugin.policy.refusals import Refused, is_shortage
from tests.descriptors import no_descriptors
from tests.nri_plugin.bundle import Bundle, bundle

__all__ = ["bundle"]


def _raises_shortage(work: Callable[[], object]) -> None:
    with no_descriptors(), pytest.raises(Refused, match="no file descriptors") as raised:
        work()
    assert is_shortage(raised.value)


def test_a_cdi_spec_that_cannot_be_opened_is_not_missing(tmp_path: Path) -> None:
    (tmp_path / "nvidia.json").write_text('{"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu"}')
    reader = cdi_reader.Reader([tmp_path])
    _raises_shortage(reader.load)
    _raises_shortage(lambda: cdi_vendor.by_name([tmp_path], ["vendor.com/gpu=0"]))
    assert not reader.load().problems


@pytest.mark.node
def test_a_running_containers_limit_is_not_judged(bundle: Bundle) -> None:
    bundle.create()
    prove = partial(bundle.inspector.prove, bundle.id, bundle.plan, None)
    _raises_shortage(bundle.examine)
    _raises_shortage(prove)
    _raises_shortage(lambda: bundle.files.plan(bundle.id, "main"))
    _raises_shortage(lambda: bundle.files.grants([bundle.id]))
    assert prove() is Proof.HOLDS
