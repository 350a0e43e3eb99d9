"""Containers with a grant after the end of dockerd and of the machine: which of them run again, and
that none runs without its grant."""

from __future__ import annotations

from typing import Final

import pytest
from docker.errors import APIError
from docker.models.containers import Container

from gpuslice.contract import names
from lab.docker.machine import RUN_CDI, Machine
from tests.support import until

from .grants import BUILD_S, GRANT, LIMITED, Grant, Result, execute

pytestmark = [pytest.mark.docker, pytest.mark.timeout(BUILD_S)]

LABEL: Final = "gpuslice.io/key"
POLICIES: Final = ("no", "on-failure", "unless-stopped", "always")
LIVE: Final = "--live-restore"
REFUSED: Final = "unresolvable CDI devices"


def _started(grant: Grant) -> None:
    """Start a container with each restart policy, and with the policy as its label."""
    for policy in POLICIES:
        labels = {LABEL: policy}
        grant.create(restart_policy={"Name": policy}, labels=labels).start()


def _by_policy(machine: Machine) -> dict[str, Container]:
    ours: dict[str, str | list[str] | bool] = {"label": LABEL}
    listed = machine.client.containers.list(all=True, filters=ours, ignore_removed=True)
    return {each.labels[LABEL]: each for each in listed}


def _until_running(machine: Machine, *policies: str) -> None:
    """Wait until the containers with these policies run. The others must not run."""

    def running() -> set[str]:
        return {policy for policy, each in _by_policy(machine).items() if each.status == "running"}

    until(lambda: running() == {*policies}, f"only {policies} run", within_s=30)
    for policy in policies:
        limited = execute(_by_policy(machine)[policy], "cat", GRANT)
        assert limited == Result(0, "half", LIMITED)


def _errors(machine: Machine) -> dict[str, bool]:
    """Return for each policy whether its container has not started for lack of its grant."""
    containers = _by_policy(machine)
    return {policy: REFUSED in each.attrs["State"]["Error"] for policy, each in containers.items()}


def test_containers_run_on_while_a_killed_dockerd_is_away(grant: Grant) -> None:
    machine = grant.machine
    machine.restart_dockerd(LIVE)
    _started(grant)
    machine.kill_dockerd()
    grant.remove_spec()
    machine.start_dockerd(LIVE)
    _until_running(machine, *POLICIES)
    grant.outside(names.FILE_GRANT).write_text("less")
    assert execute(_by_policy(machine)["no"], "cat", GRANT).out == "less"


def test_a_killed_dockerd_restarts_some_containers_only(grant: Grant) -> None:
    """dockerd stops the containers that it finds. This counts as the user's stop, so that not only
    containers without a policy stay stopped."""
    machine = grant.machine
    _started(grant)
    machine.restart_dockerd()
    _until_running(machine, "on-failure", "always")
    assert not any(_errors(machine).values())
    grant.remove_spec()
    machine.restart_dockerd()
    _until_running(machine)
    failed = {"no": False, "on-failure": True, "unless-stopped": False, "always": True}
    until(lambda: _errors(machine) == failed, "refused for lack of the spec")
    grant.write()
    machine.restart_dockerd()
    _until_running(machine, "on-failure", "always")


def test_a_failed_start_ends_the_effect_of_a_restart_policy(grant: Grant) -> None:
    container = grant.create(["sh", "-c", "sleep 1; exit 3"], restart_policy={"Name": "always"})
    container.start()
    grant.remove_spec()

    def given_up() -> bool:
        container.reload()
        return container.status == "exited" and REFUSED in container.attrs["State"]["Error"]

    until(given_up, "the restart is refused")
    grant.write()
    with pytest.raises(AssertionError):
        until(lambda: not given_up(), "it starts again by itself", within_s=5)
    container.start()
    until(lambda: not given_up(), "it starts")


@pytest.mark.parametrize("options", [(), (LIVE,)], ids=["", "live-restore"])
def test_a_reboot_with_the_spec_on_disk(grant: Grant, options: tuple[str, ...]) -> None:
    machine = grant.machine
    machine.restart_dockerd(*options)
    _started(grant)
    machine.reboot(daemons=False)
    machine.start_containerd()
    machine.start_dockerd(*options)
    _until_running(machine, *POLICIES[1:])


def test_a_reboot_without_the_spec(grant: Grant) -> None:
    """/run/cdi is empty after a reboot. A later spec has no effect until `docker start`."""
    machine = grant.machine
    grant.remove_spec()
    volatile = Grant(machine, grant.key, grant.library, RUN_CDI)
    volatile.write()
    _started(volatile)
    machine.reboot()
    until(lambda: sum(_errors(machine).values()) == len(POLICIES) - 1, "refused")
    _until_running(machine)
    volatile.write()
    for container in _by_policy(machine).values():
        container.start()
    _until_running(machine, *POLICIES)


def test_a_container_that_removes_itself(grant: Grant) -> None:
    """It is gone after its end, and after the end of dockerd if it had not started."""
    machine = grant.machine
    for policy in ("ends", "never starts"):
        grant.create(labels={LABEL: policy}, auto_remove=True)
    ends = _by_policy(machine)["ends"]
    ends.start()
    ends.kill()
    until(lambda: [*_by_policy(machine)] == ["never starts"], "it is removed")
    machine.restart_dockerd()
    until(lambda: not _by_policy(machine), "it is removed")


def test_no_start_gives_a_gpu_without_a_grant(grant: Grant) -> None:
    """All starts after the spec is gone are refused: start, restart, and after a pause."""
    container = grant.create()
    container.start()
    grant.remove_spec()
    container.pause()
    container.unpause()
    assert execute(container, "cat", GRANT).errors == LIMITED, "it has not started again"
    with pytest.raises(APIError, match=REFUSED):
        container.restart()
    with pytest.raises(APIError, match=REFUSED):
        container.start()
