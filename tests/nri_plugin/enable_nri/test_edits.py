"""Edits by enable-nri of containerd's main file, and those left to the operator."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from nri_plugin.enable_nri import change, command, edits
from nri_plugin.enable_nri.host import Host

PATTERN = "/etc/containerd/conf.d/*.toml"
NRI = "io.containerd.nri.v1.nri"


@pytest.mark.parametrize(
    ("main", "line"),
    [
        ("version = 2\n[grpc]\n  uid = 0\n", 2),
        ("[grpc]\n", None),
        ("# a comment\nversion = 3", 3),
        ('version = 2\nimports = ["/a.toml",\n  "b.toml", # why\n]\n[grpc]\nuid = 0\n', 2),
        ("version = 2\nimports = []\n", 2),
        (f'version = 2\nimports = ["{PATTERN}"]\n', 2),
    ],
)
def test_the_imports_line(main: str, line: int | None) -> None:
    """Every other line stays."""
    if line is None:
        with pytest.raises(edits.EditError, match="version: invalid value 1: must be 2 or later"):
            edits.with_import(main, PATTERN)
        return
    text = edits.with_import(main, PATTERN)
    before = tomllib.loads(main)
    imports = [each for each in before.get("imports", []) if each != PATTERN]
    assert tomllib.loads(text) == {**before, "imports": [*imports, PATTERN]}
    kept = [each for each in main.splitlines() if "imports" not in each and "b.toml" not in each]
    assert [each for each in text.splitlines() if each in kept] == [
        each for each in kept if each != "]"
    ]
    assert edits.with_import(text, PATTERN) == text


@pytest.mark.parametrize(
    ("main", "problem"),
    [
        ("version = 2\n[", "must be TOML"),
        (f'version = 2\ndisabled_plugins = ["{NRI}"]\n', "disabled_plugins: invalid value"),
        ('version = 2\n"imports" = ["/a.toml"]\n', "imports: invalid value: must have"),
        ('version = 2\nimports = ["/a[0-9].toml"]\n', "to it by hand"),
    ],
)
def test_a_configuration_that_cannot_be_edited_is_refused(main: str, problem: str) -> None:
    with pytest.raises(edits.EditError, match=problem):
        edits.with_import(main, PATTERN)


def test_the_validator_is_turned_on_where_there_is_one() -> None:
    table = {"disable": True, "default_validator": {"enable": False, "required_plugins": ["a"]}}
    effective = {"version": 3, "plugins": {NRI: table}}
    assert tomllib.loads(edits.drop_in(effective)) == {
        "version": 3,
        "plugins": {NRI: {"disable": False, "default_validator": {"enable": True}}},
    }
    half = {"disable": False, "default_validator": {"enable": False}}
    assert not edits.is_on({"plugins": {NRI: half}})
    assert edits.is_on({"plugins": {NRI: {"disable": False}}})


def test_the_drop_in_of_1_7_repeats_the_table() -> None:
    """containerd 1.7 replaces the table, later releases merge it."""
    table = {"disable": True, "socket_path": "/a\\b", "n": 2, "validator": {"enable": True}}
    for version, whole in ((2, table), (3, {})):
        effective = {"version": version, "plugins": {NRI: table}}
        written = tomllib.loads(edits.drop_in(effective))
        assert written["version"] == version
        assert written["plugins"][NRI] == {**whole, "disable": False}


def test_the_effective_configuration_differs_in_nri_alone() -> None:
    before = {"version": 2, "root": "/a", "plugins": {NRI: {"disable": True, "x": 1}}}
    on = {"disable": False, "x": 1}
    assert edits.difference(before, {**before, "plugins": {NRI: on}, "imports": ["b"]}) == ""
    assert "still off" in edits.difference(before, before)
    assert "root: " in edits.difference(before, {**before, "root": "/b", "plugins": {NRI: on}})
    lost = {**before, "plugins": {NRI: {"disable": False}}}
    assert "plugins: " in edits.difference(before, lost)


def test_an_operators_edit_outlives_a_repair(tmp_path: Path) -> None:
    ours, edited = tmp_path / "ours", tmp_path / "edited"
    record = change.Record(
        change.State.CHANGING, {ours: b"1", edited: b"1"}, {ours: b"2", edited: b"2"}
    )
    journal = change.Journal(tmp_path)
    journal.write(record)
    record.apply()
    edited.write_bytes(b"3")
    found = journal.read()
    assert found == record and found is not None
    found.revert()
    assert (ours.read_bytes(), edited.read_bytes()) == (b"1", b"3")


@pytest.mark.parametrize(
    ("directory", "name"),
    [
        ("var/lib/rancher/k3s/agent/etc/containerd", "k3s"),
        ("var/lib/rancher/rke2/agent/etc/containerd", "RKE2"),
        ("var/snap/microk8s/current/args", "MicroK8s"),
    ],
)
def test_a_generated_configuration_is_refused_by_name(
    directory: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "etc").mkdir()
    assert command.main(["--host-root", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert f"{name} generates containerd's configuration in /{directory}" in said
    config = tmp_path / "etc/containerd/config.toml"
    assert not config.parent.exists()
    config.parent.mkdir()
    config.write_text("version = 2\n")
    assert Host(tmp_path).generated_by(Path("/etc/containerd/config.toml")) == ""


def test_a_host_without_containerd_or_systemd(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "containerd/config.toml"
    flags = ["--host-root", "/", "--containerd-config", str(config)]
    config.parent.mkdir()
    config.write_text(f'version = 2\n[grpc]\naddress = "{tmp_path}/c.sock"\n')
    assert command.main(flags) == 1
    assert f"no process listens at {tmp_path}/c.sock" in capsys.readouterr().err
    assert list(config.parent.iterdir()) == [config]
