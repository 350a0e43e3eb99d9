"""The containers with a grant on this machine's Docker, and the connection to it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import docker
from docker.errors import DockerException, NotFound
from urllib3.exceptions import HTTPError

from gpuslice.contract import names
from gpuslice.docker import daemon, grants

ERRORS: Final = (DockerException, HTTPError, OSError)
"""The errors of this module's functions."""
_SOCKET: Final = "/var/run/docker.sock"
_UNIX: Final = "unix://"
_LIST_S: Final = 5
_CHANGE_S: Final = 60


@dataclass(frozen=True, slots=True)
class Container:
    """A container that asks for a grant. grant: the label's text. status, error: Docker's State.
    restarts: it has a restart policy."""

    id: str
    name: str
    key: str
    grant: str
    status: str
    restarts: bool = False
    error: str = ""

    @property
    def running(self) -> bool:
        return self.status in ("running", "paused")


def connect(timeout_s: int = _CHANGE_S) -> docker.APIClient:
    """Return a connection to this machine's daemon. There is one that counts: another would not
    list the containers with a grant, and their grants would be freed. Raises ERRORS."""
    given = os.environ.get("DOCKER_HOST") or _UNIX + _SOCKET
    if os.path.realpath(given.removeprefix(_UNIX)) != os.path.realpath(_SOCKET):
        raise DockerException(
            f"DOCKER_HOST: invalid value {given}: must be unset or {_UNIX}{_SOCKET}, because grants"
            " belong to this machine's daemon"
        )
    try:
        return docker.APIClient(_UNIX + _SOCKET, version="auto", timeout=timeout_s)
    except DockerException as error:
        raise DockerException(f"Docker does not answer at {_SOCKET}: {error}") from error


def listed() -> Sequence[Container]:
    """Return the containers that ask for a grant, whatever their state. A label is no proof:
    `docker commit` copies it into an image, and so to each container of it. Raises as `connect`."""
    found = []
    with connect(_LIST_S) as client:
        for each in client.containers(all=True, filters={"label": names.LABEL_KEY}):
            with suppress(NotFound):  # it was removed meanwhile
                found.append(client.inspect_container(each["Id"]))
    ours = [_container(each) for each in found if daemon.asks_for(each, _key(each))]
    return [each for each in ours if grants.is_key(each.key)]


def _key(answer: Mapping[str, Any]) -> str:
    return str(answer["Config"]["Labels"][names.LABEL_KEY])


def _container(answer: Mapping[str, Any]) -> Container:
    labels, state = answer["Config"]["Labels"], answer["State"]
    return Container(
        id=answer["Id"],
        name=answer["Name"].removeprefix("/"),
        key=_key(answer),
        grant=labels.get(names.LABEL_GRANT, ""),
        status=state["Status"],
        restarts=answer["HostConfig"]["RestartPolicy"]["Name"] not in ("", "no"),
        error=state["Error"],
    )


def keys() -> AbstractSet[str] | None:
    """Return the keys of all containers; None if Docker does not answer."""
    with suppress(*ERRORS):
        return {each.key for each in listed()}
    return None


def remove_all(key: str) -> None:
    """Kill and remove each container with the key, and its anonymous volumes. Raises as
    `connect`."""
    for each in listed():
        if each.key == key:
            remove(each.id, volumes=True)


def start(container: str) -> None:
    """Raises as `connect`."""
    with connect() as client:
        client.start(container)


def remove(container: str, *, volumes: bool = False) -> None:
    """Kill and remove the container, if it exists. volumes: its anonymous ones too. Raises as
    `connect`."""
    with suppress(NotFound), connect() as client:
        client.remove_container(container, force=True, v=volumes)
