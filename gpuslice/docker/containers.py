"""The containers with our label on this machine's Docker, for `gpuslice host` and `gpuslice rm`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import docker
from docker.errors import DockerException, NotFound
from urllib3.exceptions import HTTPError

from gpuslice.contract import names
from gpuslice.docker import grants
from gpuslice.docker.recovery import Container
from nri_plugin.host import releases

ERRORS: Final = (DockerException, HTTPError, OSError)
"""The errors of this module's functions."""
_LOCAL: Final = "http+docker://localhost"
"""The SDK's address of a Unix socket."""
_STATE: Final = Path(names.DOCKER_STATE_DIR)
_DAEMON: Final = _STATE / ".daemon"
_LIST_S: Final = 5
_CHANGE_S: Final = 60
_FILTER: Final = {"label": names.LABEL_KEY}
_EVENTS: Final = ["start", "die", "destroy"]


class OtherDaemonError(DockerException):
    """The daemon is not the one that has the containers with a grant."""


def connect(timeout_s: int = _CHANGE_S) -> docker.APIClient:
    """Return a connection to this machine's daemon, or to that of DOCKER_HOST. Raises ERRORS, also
    for a daemon that does not have the containers of the stored grants: it would not list them,
    and their grants would be freed."""
    client = docker.DockerClient.from_env(version="auto", timeout=timeout_s).api
    if client.base_url != _LOCAL:
        raise OtherDaemonError(
            f"DOCKER_HOST: invalid value {client.base_url}: must be a Unix socket, because limits"
            " are files of this machine"
        )
    _require(client)
    return client


def claim(client: docker.APIClient) -> None:
    """Make the daemon the one that has the containers with a grant, unless there is one. Called
    under the lock of the bookings. Raises OtherDaemonError and StoreError."""
    daemon, known = _require(client)
    if known is None:
        releases.replace(_DAEMON, daemon.encode())


def _require(client: docker.APIClient) -> tuple[str, str | None]:
    """Return the daemon's ID, and `_known`. Raises OtherDaemonError if they differ."""
    daemon, known = str(client.info()["ID"]), _known()
    if known not in (None, daemon):
        raise OtherDaemonError(
            f"Docker: invalid daemon {daemon}: must be {known}, which has the containers with a"
            f" grant; unset DOCKER_HOST. If that daemon is gone, remove {_STATE} and restart the"
            " machine"
        )
    return daemon, known


def _known() -> str | None:
    """Return the ID of the daemon of the stored grants. None: there is none, or it is unknown."""
    with suppress(FileNotFoundError):
        if any(_STATE.glob("*.json")):
            return _DAEMON.read_text()
    return None


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
