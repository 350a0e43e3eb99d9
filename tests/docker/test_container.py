"""A container with a grant: its GPU, the library and the grant's files, in all ways to run a
program in it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from docker.errors import APIError
from docker.types import Mount

from gpuslice.contract import names

from .grants import (
    BUILD_S,
    GRANT,
    LIMITED,
    REGION,
    VARIABLE,
    Grant,
    Result,
    by_runtime,
    create,
    execute,
    run,
)

pytestmark = [pytest.mark.docker, pytest.mark.timeout(BUILD_S)]

UNPRIVILEGED = "1000:1000"
_EVIL = Path("/tmp/evil/grant")


def test_a_container_has_its_gpu_and_its_limit(grant: Grant) -> None:
    container = grant.create()
    container.start()
    listed = execute(container, "nvidia-smi", "-L")
    assert grant.machine.gpus[0].uuid in listed.out
    assert listed.errors == LIMITED
    kept = execute(container, "env", "-i", "/usr/bin/cat", GRANT, user=UNPRIVILEGED)
    assert kept == Result(0, "half", LIMITED * 2), "of env and cat"
    nodes = execute(container, "sh", "-c", "ls /dev/nvidia*").out.split()
    assert {"/dev/nvidia0", "/dev/nvidiactl"} <= {*nodes}
    # The directory is read-only. The region in it is not.
    assert execute(container, "touch", f"{names.CONTAINER_DIR}/x").code == 1
    assert execute(container, "touch", REGION).code == 0
    assert execute(container, "rm", names.CONTAINER_PRELOAD).code == 1
    # The grant's file is the host's.
    grant.outside(names.FILE_GRANT).write_text("less")
    assert execute(container, "cat", GRANT).out == "less"


def test_variables_of_the_spec_reach_the_program_but_not_docker_exec(grant: Grant) -> None:
    container = grant.create(["sh", "-c", "env; exec sleep infinity"])
    container.start()
    executed = execute(container, "env").out
    printed = container.logs(stderr=False).decode()
    assert f"{VARIABLE}=half" in printed and VARIABLE not in executed
    # So NVIDIA's runtime adds no GPU to those of the spec.
    assert f"{names.ENV_VISIBLE_DEVICES}={names.VISIBLE_DEVICES_NONE}" in printed


@pytest.mark.parametrize("mode", [0o644, 0o666], ids=oct)
def test_a_users_program_needs_a_region_that_it_may_write(grant: Grant, mode: int) -> None:
    grant.write(region_mode=mode)
    expected = LIMITED if mode == 0o666 else "no region\n"
    assert grant.run(["true"], user=UNPRIVILEGED).errors == expected
    assert grant.run(["true"]).errors == LIMITED


def test_a_read_only_root_makes_a_region_of_the_spec_read_only(grant: Grant) -> None:
    """dockerd does so with every mount that is not the user's. NVIDIA's runtime comes later."""
    expected = "no region\n" if grant.machine.release.cdi else LIMITED
    assert grant.run(["true"], read_only=True).errors == expected
    region = Mount(REGION, str(grant.directory / names.FILE_REGION), type="bind")
    assert grant.run(["true"], read_only=True, mounts=[region]).errors == LIMITED


def test_a_start_without_the_spec_is_refused_until_it_is_there(grant: Grant) -> None:
    container = grant.create(["cat", GRANT])
    grant.remove_spec()
    with pytest.raises(APIError, match="unresolvable CDI devices"):
        container.start()
    # The spec is read at each start.
    for text in ("other", "third"):
        grant.write(text)
        assert run(container).out.endswith(text)


@pytest.mark.parametrize("name", [names.FILE_PRELOAD, names.FILE_REGION, ""])
def test_a_start_without_a_source_is_refused(grant: Grant, name: str) -> None:
    container = grant.create()
    path = grant.outside(name)
    path.rename(path.with_name("away"))
    with pytest.raises(APIError, match=r"no such file|not exist|fulfilling mount"):
        container.start()


def test_an_image_of_the_container_is_harmless(grant: Grant) -> None:
    container = grant.create(["true"])
    run(container)
    container.commit(repository="local/committed")
    script = f"cat {names.CONTAINER_PRELOAD}; ls -A {names.CONTAINER_DIR}"
    assert run(create(grant.machine, ["sh", "-c", script], image="local/committed")) == Result(
        0, "", ""
    )


def test_a_grants_way_by_the_runtime_of_a_daemon_with_cdi(grant: Grant) -> None:
    ran = run(create(grant.machine, ["nvidia-smi", "-L"], **by_runtime(grant.device)))
    assert grant.machine.gpus[0].uuid in ran.out and ran.errors == LIMITED


@pytest.mark.parametrize(
    ("config", "outcome"),
    [
        ('[nvidia-container-runtime]\nmode = "auto"\n', "limited"),
        ("", "limited"),
        ('[nvidia-container-runtime]\nmode = "legacy"\n', "refused"),
        ("accept-nvidia-visible-devices-envvar-when-unprivileged = false\n", "no GPU"),
    ],
    ids=["auto", "default", "legacy", "variable ignored"],
)
def test_modes_of_nvidias_runtime(grant: Grant, config: str, outcome: str) -> None:
    """The simulated machine lacks nvidia-container-cli, which legacy mode needs."""
    container = create(grant.machine, ["ls", "/dev/nvidia0"], **by_runtime(grant.device))
    with grant.machine.toolkit_config(config):
        if outcome == "refused":
            with pytest.raises(APIError, match="hook"):
                container.start()
        else:
            expected = (0, LIMITED) if outcome == "limited" else (2, "")
            ran = run(container)
            assert (ran.code, LIMITED * (LIMITED in ran.errors)) == expected


_DIRECTORY: Mapping[str, Any] = {"bind": names.CONTAINER_DIR, "mode": "rw"}


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"volumes": {"/tmp/evil": _DIRECTORY}}, id="volume"),
        pytest.param({"mounts": [Mount(names.CONTAINER_DIR, "/tmp/evil", type="bind")]}, id="bind"),
        pytest.param({"tmpfs": {names.CONTAINER_DIR: ""}}, id="tmpfs"),
        pytest.param({"tmpfs": {"/etc": ""}}, id="tmpfs-etc"),
        pytest.param({"volumes": {"/tmp/evil": {"bind": "/etc"}}}, id="volume-etc"),
    ],
)
def test_a_users_mount_at_or_above_ours(grant: Grant, options: Mapping[str, Any]) -> None:
    """NVIDIA's runtime mounts after the user, and dockerd's own CDI before. So the product refuses
    these mounts, as well as those below its directory, which always win."""
    grant.machine.namespace.write(_EVIL, "evil")
    ran = grant.run(["cat", GRANT], **options)
    ours = ran == Result(0, "half", LIMITED)
    assert ours == (not grant.machine.release.cdi)
    below = {"volumes": {str(_EVIL): {"bind": GRANT, "mode": "ro"}}}
    assert grant.run(["cat", GRANT], **below).out == "evil"
