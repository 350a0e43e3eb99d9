"""How a container gets its grant, and the request that creates it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpuslice.contract import names
from gpuslice.contract.grant_file import Gpu
from gpuslice.docker import daemon, grants, options, refusals
from gpuslice.docker.daemon import Way
from gpuslice.docker.grants import Grant
from gpuslice.docker.machine import MachineError

_CDI = Path("/var/run/cdi")
_CONFIG = Path("/etc/nvidia-container-runtime/config.toml")
_NEW = {"OSType": "linux", "CDISpecDirs": ["/etc/cdi", "/var/run/cdi"], "ServerVersion": "29.1"}
_OLD = {"OSType": "linux", "Runtimes": {"runc": {}, "nvidia": {}}, "ServerVersion": "20.10.24"}


def _way(info: Mapping[str, Any], api: str, config: Mapping[str, Any] | None = None) -> Way:
    return daemon.way(info, api, lambda: (_CONFIG, config or {}), _CDI)


def _mode(mode: str) -> Mapping[str, Any]:
    return {"nvidia-container-runtime": {"mode": mode}}


@pytest.mark.parametrize(
    ("info", "api", "config", "way"),
    [
        (_NEW, "1.50", {}, Way.CDI),
        (_NEW | {"CDISpecDirs": ["/run/cdi"]}, "1.56", {}, Way.CDI),
        (_OLD, "1.41", {}, Way.NVIDIA),
        (_OLD, "1.41", _mode("cdi"), Way.NVIDIA),
        (_OLD, "1.41", _mode("auto"), Way.NVIDIA),
        # Docker 25 to 28.1 cannot restore containers with CDI devices.
        (_NEW | _OLD, "1.49", {}, Way.NVIDIA),
        (_OLD | {"CDISpecDirs": []}, "1.50", {}, Way.NVIDIA),
    ],
)
def test_the_way_of_a_daemon(
    info: Mapping[str, Any], api: str, config: Mapping[str, Any], way: Way
) -> None:
    assert _way(info, api, config) is way


@pytest.mark.parametrize(
    ("info", "config", "text"),
    [
        (_OLD, _mode("legacy"), "mode: invalid value 'legacy': must be 'cdi'"),
        (_OLD, _mode("csv"), 'write the line mode = "cdi"'),
        (
            _OLD,
            {"accept-nvidia-visible-devices-envvar-when-unprivileged": False},
            "unprivileged: invalid value false: must be true",
        ),
        (_OLD, {"swarm-resource": "DOCKER_RESOURCE_GPU"}, "swarm-resource: invalid value"),
        (
            _OLD,
            {"nvidia-container-runtime": {"modes": {"cdi": {"spec-dirs": ["/etc/cdi"]}}}},
            "spec-dirs: invalid value /etc/cdi: must contain /var/run/cdi",
        ),
        (_OLD | {"Runtimes": {"runc": {}}}, {}, "Docker 20.10.24: required: CDI or the runtime"),
        (_OLD | {"OSType": "windows"}, {}, "must run containers of Linux, as root"),
        (_OLD | {"SecurityOptions": ["name=rootless"]}, {}, "containers of Linux, as root"),
    ],
)
def test_a_daemon_without_a_way_is_refused_with_what_to_change(
    info: Mapping[str, Any], config: Mapping[str, Any], text: str
) -> None:
    with pytest.raises(MachineError) as refused:
        _way(info, "1.41", config)
    assert text in str(refused.value)


def test_a_daemon_with_neither_way_is_told_both() -> None:
    with pytest.raises(MachineError) as refused:
        _way({"OSType": "linux"}, "1.41")
    for text in ("update Docker to 28.2", "nvidia-ctk runtime configure --runtime=docker"):
        assert text in str(refused.value)


def _body(words: str, way: Way = Way.CDI) -> Mapping[str, Any]:
    asked = options.parse(["--memory", "1GiB", "--image", "debian", *words.split()])
    volumes = [refusals.volume(each, os.path.abspath, lambda _: {}) for each in asked.volume]
    grant = Grant("k1", "web", [Gpu("GPU-1", 1 << 30, 100, 0, context_bytes=5)])
    return daemon.body(asked, volumes, ["A=1"], grant, way)


def test_the_grant_is_a_cdi_device() -> None:
    body = _body("")
    host = body["HostConfig"]
    assert host["DeviceRequests"] == [{"Driver": "cdi", "DeviceIDs": ["gpuslice.io/grant=k1"]}]
    assert host["Runtime"] == "runc"
    assert body["Env"] == ["A=1", "NVIDIA_VISIBLE_DEVICES=void"]


def test_the_grant_is_a_variable_for_nvidias_runtime() -> None:
    body = _body("", Way.NVIDIA)
    assert "DeviceRequests" not in body["HostConfig"]
    assert body["HostConfig"]["Runtime"] == "nvidia"
    assert body["Env"][-1] == "NVIDIA_VISIBLE_DEVICES=gpuslice.io/grant=k1"


@pytest.mark.parametrize("way", Way)
def test_a_container_asks_for_its_grant_and_one_of_its_image_does_not(way: Way) -> None:
    """`docker commit` copies the labels and the variables."""
    body = dict(_body("", way))
    host, config = body.pop("HostConfig"), body
    assert daemon.asks_for({"HostConfig": host, "Config": config}, "k1")
    assert not daemon.asks_for({"HostConfig": host, "Config": config}, "k2")
    for plain in ({"Runtime": "runc"}, {"Runtime": "runc", "DeviceRequests": None}):
        assert not daemon.asks_for({"HostConfig": plain, "Config": config}, "k1")


def test_the_labels_are_enough_to_make_the_grant_again() -> None:
    labels = _body("")["Labels"]
    assert labels[names.LABEL_KEY] == "k1"
    again = grants.decode("k1", labels[names.LABEL_GRANT])
    assert again == Grant("k1", "web", [Gpu("GPU-1", 1 << 30, 100, 0, context_bytes=5)])


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"v":2}', '{"v":1,"gpus":[]}', '{"v":1,"gpus":1}']
)
def test_an_unreadable_grant(text: str) -> None:
    assert grants.decode("k1", text) is None


def test_options_are_as_docker_sends_them() -> None:
    words = "-it -v a:/b -v /c/../d:/e:ro -v /f -v .:/g -p 80:8080/udp -p 127.0.0.1::90 --rm -u 1"
    body = _body(f"{words} --shm-size 64m --ipc shareable --network host -w /w -- sh -c x")
    host = body["HostConfig"]
    assert host["Binds"] == ["a:/b", "/d:/e:ro", f"{Path.cwd()}:/g"]
    assert body["Volumes"] == {"/f": {}}
    assert host["PortBindings"] == {
        "8080/udp": [{"HostIp": "", "HostPort": "80"}],
        "90/tcp": [{"HostIp": "127.0.0.1", "HostPort": ""}],
    }
    assert (host["AutoRemove"], host["ShmSize"], host["IpcMode"]) == (True, 64 << 20, "shareable")
    assert (host["NetworkMode"], body["WorkingDir"], body["User"]) == ("host", "/w", "1")
    assert (body["Tty"], body["OpenStdin"], body["StdinOnce"]) == (True, True, True)
    assert body["Cmd"] == ["sh", "-c", "x"]


@pytest.mark.parametrize(
    ("words", "policy"),
    [
        ("", {"Name": "no"}),
        ("--restart on-failure:x", {"Name": "on-failure:x"}),
        ("--restart on-failure:3", {"Name": "on-failure", "MaximumRetryCount": 3}),
    ],
)
def test_the_restart_policy(words: str, policy: Mapping[str, Any]) -> None:
    assert _body(words)["HostConfig"]["RestartPolicy"] == policy


@pytest.mark.parametrize(
    ("words", "entrypoint"), [("", None), ("--entrypoint=", [""]), ("--entrypoint sh", ["sh"])]
)
def test_the_entry_point(words: str, entrypoint: object) -> None:
    assert _body(words)["Entrypoint"] == entrypoint
