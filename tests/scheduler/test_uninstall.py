"""Which pods and nodes an uninstallation takes for ready."""

from __future__ import annotations

import pytest

from scheduler.uninstall import _is_ready


@pytest.mark.parametrize("unknown", [True, False])
@pytest.mark.parametrize("status", ["True", "False", "Unknown", None])
def test_a_condition_outranks_what_applies_without_one(status: str | None, unknown: bool) -> None:
    conditions = [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": status}]
    raw = {"status": {"conditions": conditions if status else conditions[:1]}}
    assert _is_ready(raw, unknown) is (status == "True" if status else unknown)
