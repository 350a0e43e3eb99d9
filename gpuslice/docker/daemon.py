"""The Docker daemon of this machine: how a container gets its grant, and what is sent to create it.

`way` and `body` are pure. A grant is one CDI device (grants.py). Docker 28.2 and newer injects it;
before, NVIDIA's container runtime does, which must be registered with the daemon as `nvidia`. Both
refuse to start a container whose device is gone.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any, Final

import docker
from docker.errors import APIError, ImageNotFound
from docker.utils import convert_port_bindings, parse_repository_tag
from docker.utils.ports import build_port_bindings

from gpuslice.contract import names
from gpuslice.docker import grants
from gpuslice.docker.grants import Grant
from gpuslice.docker.machine import MachineError
from gpuslice.docker.refusals import Volume
from nri_plugin.host import nvidia_runtime

_API: Final = (1, 50)
"""The version of the API of Docker 28.2, which loads its CDI driver before it restores containers.
Earlier ones could not start a container again after their own restart."""
_NVIDIA: Final = "nvidia"
_MODES: Final = ("auto", "cdi")
"""In mode auto the runtime uses CDI for a qualified name, too."""

Toolkit = tuple[Path, Mapping[str, Any]]
"""The configuration file of NVIDIA's runtime, and its content."""


class Way(Enum):
    """How a container gets its grant. The values are names of OCI runtimes. With CDI it is the
    daemon's own, because a default runtime of NVIDIA would read the image's variables."""

    CDI = "runc"
    NVIDIA = "nvidia"


def way(info: Mapping[str, Any], api: str, toolkit: Callable[[], Toolkit], cdi_dir: Path) -> Way:
    """Return the daemon's way, from /info and its API's version. toolkit: reads NVIDIA's
    configuration. cdi_dir: the directory of grants' specs. Raises MachineError."""
    if info["OSType"] != "linux" or "name=rootless" in (info.get("SecurityOptions") or ()):
        raise MachineError("Docker: invalid daemon: must run containers of Linux, as root")
    if tuple(map(int, api.split("."))) >= _API and (places := info.get("CDISpecDirs")):
        _require_directory("cdi-spec-dirs of dockerd", places, cdi_dir)
        return Way.CDI
    if _NVIDIA in (info.get("Runtimes") or ()):
        _require_cdi_mode(*toolkit(), cdi_dir)
        return Way.NVIDIA
    raise MachineError(
        f"Docker {info.get('ServerVersion')}: required: CDI or the runtime {_NVIDIA!r}, to give a"
        " container a GPU together with its limit; update Docker to 28.2 or newer, where CDI is"
        " not switched off, or install nvidia-container-toolkit and run"
        " `nvidia-ctk runtime configure --runtime=docker` and"
        " `nvidia-ctk config --in-place --set nvidia-container-runtime.mode=cdi`"
    )


def _require_directory(what: str, places: Sequence[str], cdi_dir: Path) -> None:
    if str(cdi_dir) not in places and str(cdi_dir).removeprefix("/var") not in places:
        raise MachineError(f"{what}: invalid value {', '.join(places)}: must contain {cdi_dir}")


def _require_cdi_mode(file: Path, config: Mapping[str, Any], cdi_dir: Path) -> None:
    runtime = config.get("nvidia-container-runtime", {})
    if (mode := runtime.get("mode") or _MODES[0]) not in _MODES:
        raise MachineError(
            f"{file}: [nvidia-container-runtime] mode: invalid value {mode!r}: must be 'cdi',"
            ' because other modes do not inject a limit; write the line mode = "cdi"'
        )
    if config.get(nvidia_runtime.ACCEPT_VARIABLES) is False:
        raise MachineError(
            f"{file}: {nvidia_runtime.ACCEPT_VARIABLES}: invalid value false: must be true, because"
            " a grant is named by a variable; remove the line"
        )
    if variables := config.get(nvidia_runtime.OTHER_VARIABLES):
        raise MachineError(
            f"{file}: {nvidia_runtime.OTHER_VARIABLES}: invalid value {variables!r}: must be unset,"
            " because it takes precedence over the variable that names a grant; remove the line"
        )
    if places := runtime.get("modes", {}).get("cdi", {}).get("spec-dirs"):
        _require_directory(f"{file}: spec-dirs", places, cdi_dir)


def find_way(client: docker.APIClient, cdi_dir: Path) -> Way:
    """Ask the daemon for its way. Raises MachineError, and OSError of NVIDIA's configuration."""
    info = client.info()
    program = (info.get("Runtimes") or {}).get(_NVIDIA, {}).get("path", "")
    file = nvidia_runtime.file(program, Path("/"))
    return way(info, client.api_version, lambda: (file, _read(file)), cdi_dir)


def _read(file: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise MachineError(f"{file}: must be TOML: {error}") from error


def image(client: docker.APIClient, name: str, say: Callable[[str], object]) -> Mapping[str, Any]:
    """Return what the image configures. An absent one is pulled, and `say` gets the progress.
    Raises MachineError."""
    with suppress(ImageNotFound):
        return _configured(client, name)
    say(f"image {name} is not here; it is pulled")
    repository, tag = parse_repository_tag(name)
    try:
        for line in client.pull(repository, tag=tag or "latest", stream=True, decode=True):
            if "error" in line:
                raise MachineError(f"--image: invalid value {name}: {line['error']}")
            if line.get("status") and not line.get("progressDetail"):
                say(" ".join(filter(None, (line.get("id"), line["status"]))))
    except APIError as error:
        raise MachineError(f"--image: invalid value {name}: {error.explanation}") from error
    return _configured(client, name)


def _configured(client: docker.APIClient, image: str) -> Mapping[str, Any]:
    return client.inspect_image(image)["Config"] or {}  # type: ignore[no-untyped-call]


def body(
    asked: argparse.Namespace,
    volumes: Sequence[Volume],
    env: Sequence[str],
    grant: Grant,
    chosen: Way,
) -> Mapping[str, Any]:
    """Return the request that creates the container. Its grant is in the labels, so that it can be
    made again. env: lines KEY=VALUE, and KEY alone for a variable that is removed."""
    ports = convert_port_bindings(build_port_bindings(asked.publish))
    policy, _, count = asked.restart.partition(":")
    restart: Mapping[str, Any] = {"Name": asked.restart}  # Docker refuses an invalid one
    if count.isdecimal():
        restart = {"Name": policy, "MaximumRetryCount": int(count)}
    host: dict[str, Any] = {
        "Runtime": chosen.value,
        "Binds": [each.bind for each in volumes if each.bind],
        "PortBindings": ports,
        "AutoRemove": asked.rm,
        "RestartPolicy": restart,
        "IpcMode": asked.ipc,
        "NetworkMode": asked.network or "default",
        "ShmSize": asked.shm_size or 0,
    }
    device = grants.device_name(grant.key)
    if chosen is Way.CDI:
        host["DeviceRequests"] = [{"Driver": "cdi", "DeviceIDs": [device]}]
    visible = names.VISIBLE_DEVICES_NONE if chosen is Way.CDI else device
    return {
        "Image": asked.image,
        "Cmd": asked.command or None,
        "Entrypoint": None if asked.entrypoint is None else [asked.entrypoint],
        "Env": [*env, f"{names.ENV_VISIBLE_DEVICES}={visible}"],
        "User": asked.user,
        "WorkingDir": asked.workdir,
        "Volumes": {each.destination: {} for each in volumes if not each.bind},
        "ExposedPorts": {port: {} for port in ports},
        "Tty": asked.tty,
        "OpenStdin": asked.interactive,
        "StdinOnce": asked.interactive and not asked.detach,
        "AttachStdin": asked.interactive and not asked.detach,
        "AttachStdout": not asked.detach,
        "AttachStderr": not asked.detach,
        "Labels": {names.LABEL_KEY: grant.key, names.LABEL_GRANT: grants.encode(grant)},
        "HostConfig": host,
    }


def asks_for(container: Mapping[str, Any], key: str) -> bool:
    """Return whether a container, as Docker describes it, gets the grant: `body` in reverse."""
    host, device = container["HostConfig"], grants.device_name(key)
    if any(device in (each["DeviceIDs"] or ()) for each in host.get("DeviceRequests") or ()):
        return True
    visible = f"{names.ENV_VISIBLE_DEVICES}={device}"
    return host["Runtime"] == Way.NVIDIA.value and visible in (container["Config"]["Env"] or ())
