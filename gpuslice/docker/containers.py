"""The containers with our label on this machine's Docker, for `gpuslice host` and `gpuslice rm`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Any, Final

import docker
from docker.errors import DockerException, NotFound
from urllib3.exceptions import HTTPError

from gpuslice.contract import names
from gpuslice.docker import grants
from gpuslice.docker.recovery import Container

ERRORS: Final = (DockerException, HTTPError, OSError)
"""The errors of this module's functions."""
_LIST_S: Final = 5
_CHANGE_S: Final = 60
_FILTER: Final = {"label": names.LABEL_KEY}
_EVENTS: Final = ["start", "die", "destroy"]


def connect(timeout_s: int = _CHANGE_S) -> docker.APIClient:
    """Return a connection to the daemon of DOCKER_HOST, or of this machine. Raises ERRORS."""
    return docker.DockerClient.from_env(version="auto", timeout=timeout_s).api


def listed() -> Sequence[Container]:
    """Return the containers with a key of ours, whatever their state. Raises as `connect`."""
    found = []
    with connect(_LIST_S) as client:
        for each in client.containers(all=True, filters=_FILTER):
            with suppress(NotFound):  # it was removed meanwhile
                found.append(_container(client.inspect_container(each["Id"])))
    return [each for each in found if grants.is_key(each.key)]


def keys() -> AbstractSet[str] | None:
    """Return the keys of all containers; None if Docker does not answer."""
    with suppress(*ERRORS), connect(_LIST_S) as client:
        found = client.containers(all=True, filters=_FILTER)
        return {each["Labels"][names.LABEL_KEY] for each in found}
    return None


def remove_all(key: str) -> None:
    """Kill and remove each container with the key. Raises as `connect`."""
    chosen = {"label": f"{names.LABEL_KEY}={key}"}
    with connect() as client:
        found = client.containers(all=True, filters=chosen)
    for each in found:
        remove(each["Id"], volumes=True)


def start(container: str) -> None:
    """Raises as `connect`."""
    with connect() as client:
        client.start(container)


def remove(container: str, *, volumes: bool = False) -> None:
    """Kill and remove the container, if it exists. volumes: its anonymous ones too. Raises as
    `connect`."""
    with suppress(NotFound), connect() as client:
        client.remove_container(container, force=True, v=volumes)


def events() -> Iterator[None]:
    """Connect, and yield at once and then at each event of our containers. Raises as `connect`."""
    with connect(_LIST_S) as client:
        stream = client.events(filters={**_FILTER, "type": "container", "event": _EVENTS})
        yield None
        for _ in stream:
            yield None


def _container(answer: dict[str, Any]) -> Container:
    labels, state = answer["Config"]["Labels"], answer["State"]
    return Container(
        id=answer["Id"],
        name=answer["Name"].removeprefix("/"),
        key=labels[names.LABEL_KEY],
        grant=labels.get(names.LABEL_GRANT, ""),
        status=state["Status"],
        restarts=answer["HostConfig"]["RestartPolicy"]["Name"] not in ("", "no"),
        error=state["Error"],
    )
