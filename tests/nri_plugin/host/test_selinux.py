"""SELinux with labelled containers, read from the kernel and the bundles that containerd wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nri_plugin.host import bundle, selinux

LABEL = "system_u:system_r:container_t:s0:c1,c2"


@pytest.mark.parametrize(
    ("enforce", "process", "found"),
    [
        ("1\n", {"selinuxLabel": LABEL}, True),
        ("1\n", {"selinuxLabel": ""}, None),
        ("1\n", {}, None),
        ("0\n", {"selinuxLabel": LABEL}, False),
        (None, {"selinuxLabel": LABEL}, False),
    ],
)
def test_enforcing_with_labels_is_a_problem(
    tmp_path: Path, enforce: str | None, process: Mapping[str, Any], found: bool | None
) -> None:
    """None: a sandbox without a label says nothing of others."""
    host, sandbox = tmp_path / "host", bundle.of(tmp_path, "sandbox")
    if enforce is not None:
        (host / "sys/fs/selinux").mkdir(parents=True)
        (host / "sys/fs/selinux/enforce").write_text(enforce)
    sandbox.mkdir(parents=True)
    (sandbox / "config.json").write_text(json.dumps({"process": process}))
    text = selinux.problem(tmp_path, ["gone", "sandbox"], host)
    assert text is None if found is None else bool(text) == found


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"process": null}'])
def test_a_bundle_that_cannot_be_read_is_no_problem(tmp_path: Path, text: str) -> None:
    (tmp_path / "sys/fs/selinux").mkdir(parents=True)
    (tmp_path / "sys/fs/selinux/enforce").write_text("1")
    sandbox = bundle.of(tmp_path, "sandbox")
    sandbox.mkdir(parents=True)
    (sandbox / "config.json").write_text(text)
    assert selinux.problem(tmp_path, ["sandbox"], tmp_path) is None
