"""Grants of the tests' own: a preload library and one CDI spec per grant, in the product's form.

A container gets a grant by a CDI device request or by NVIDIA's runtime. Everything is on the
simulated machine of lab/docker.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from docker.models.containers import Container
from docker.types import DeviceRequest
from docker.utils.socket import frames_iter

from gpuslice.contract import names
from lab.docker.image import IMAGE
from lab.docker.machine import CDI_SPEC, Machine

BUILD_S: Final = 1800
"""The timeout of tests, of which the first builds dockerd if the cache lacks it."""
KIND: Final = "gpuslice.io/grant"
STORE: Final = Path("/var/lib/gpuslice/grants")
GRANT: Final = f"{names.CONTAINER_DIR}/{names.FILE_GRANT}"
REGION: Final = f"{names.CONTAINER_DIR}/{names.FILE_REGION}"
LIBRARY: Final = "preload.so"
LIMITED: Final = "limited\n"
"""What the library writes to standard error of each program that loads it."""
VARIABLE: Final = "OF_THE_SPEC"
_READ_ONLY: Final = ("ro", "nosuid", "nodev", "bind")
_WRITABLE: Final = ("rw", "nosuid", "nodev", "bind")


class Result(NamedTuple):
    code: int
    out: str
    errors: str


@dataclass(frozen=True)
class Grant:
    """A grant on a machine. library: the built preload library. cdi_dir: where the spec is."""

    machine: Machine
    key: str
    library: Path
    cdi_dir: Path = Path("/etc/cdi")

    @property
    def device(self) -> str:
        return f"{KIND}={self.key}"

    @property
    def directory(self) -> Path:
        return STORE / self.key

    @property
    def spec_file(self) -> Path:
        return self.cdi_dir / f"gpuslice.io-grant-{self.key}.json"

    def outside(self, name: str) -> Path:
        """Return where this process reaches a file of the grant."""
        return self.machine.namespace.outside(self.directory / name)

    def write(self, text: str = "half", region_mode: int = 0o666) -> None:
        """Write the grant's files and its spec."""
        write = self.machine.namespace.write
        write(self.directory / names.FILE_GRANT, text)
        write(self.directory / names.FILE_REGION, "", region_mode)
        write(self.directory / names.FILE_PRELOAD, f"{names.CONTAINER_DIR}/{LIBRARY}\n")
        shutil.copy(self.library, self.outside(LIBRARY))
        write(self.spec_file, json.dumps(self.spec(text)))

    def spec(self, value: str) -> Mapping[str, Any]:
        """Return NVIDIA's edits for the first GPU, and the grant's own after them."""
        generated = json.loads(self.machine.namespace.outside(CDI_SPEC).read_text())
        uuid = self.machine.gpus[0].uuid
        (device,) = (each for each in generated["devices"] if each["name"] == uuid)
        edits: dict[str, list[Any]] = {}
        for part in (generated["containerEdits"], device["containerEdits"], self._own(value)):
            for name, values in part.items():
                edits.setdefault(name, []).extend(values)
        devices = [{"name": self.key, "containerEdits": edits}]
        return {"cdiVersion": generated["cdiVersion"], "kind": KIND, "devices": devices}

    def _own(self, value: str) -> Mapping[str, list[Any]]:
        places = (
            (self.directory, names.CONTAINER_DIR, _READ_ONLY),
            (self.directory / names.FILE_REGION, REGION, _WRITABLE),
            (self.directory / names.FILE_PRELOAD, names.CONTAINER_PRELOAD, _READ_ONLY),
        )
        mounts = [
            {"hostPath": str(host), "containerPath": inside, "options": options}
            for host, inside, options in places
        ]
        return {"env": [f"{VARIABLE}={value}"], "mounts": mounts}

    def remove_spec(self) -> None:
        self.machine.namespace.outside(self.spec_file).unlink()

    def request(self) -> dict[str, Any]:
        """Return the arguments by which a container gets the grant on this release."""
        return by_cdi(self.device) if self.machine.release.cdi else by_runtime(self.device)

    def create(self, command: Sequence[str] = ("sleep", "infinity"), **options: Any) -> Container:
        """Create a container with the grant."""
        return create(self.machine, command, **self.request(), **options)

    def run(self, command: Sequence[str], **options: Any) -> Result:
        """Run a container with the grant to its end."""
        return run(self.create(command, **options))


def by_cdi(*devices: str) -> dict[str, Any]:
    return {"device_requests": [DeviceRequest(driver="cdi", device_ids=[*devices])]}


def by_runtime(devices: str) -> dict[str, Any]:
    return {"runtime": "nvidia", "environment": {names.ENV_VISIBLE_DEVICES: devices}}


def create(
    machine: Machine, command: Sequence[str], image: str = IMAGE, **options: Any
) -> Container:
    """Create a container, which `docker stop` kills at once."""
    options = {"network_mode": "none", "stop_signal": "SIGKILL", **options}
    return machine.client.containers.create(image, [*command], **options)


def run(container: Container) -> Result:
    """Start a container and wait for its end."""
    container.start()
    code = container.wait()["StatusCode"]
    out, errors = container.logs(stderr=False), container.logs(stdout=False)
    return Result(code, out.decode(), errors.decode())


def execute(container: Container, *command: str, user: str = "") -> Result:
    """Run `docker exec`. Container.exec_run leaves its socket open."""
    client: Any = container.client
    api = client.api
    made = api.exec_create(container.id, [*command], user=user)["Id"]
    stream = api.exec_start(made, socket=True)
    with contextlib.closing(stream._response.raw.connection.sock), contextlib.closing(stream):
        frames = [*frames_iter(stream, tty=False)]  # type: ignore[no-untyped-call]
    out, errors = (b"".join(data for each, data in frames if each == number) for number in (1, 2))
    return Result(api.exec_inspect(made)["ExitCode"], out.decode(), errors.decode())
