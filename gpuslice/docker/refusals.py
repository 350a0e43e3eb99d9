"""What no container of `gpuslice run --image` may have, with the reason.

Pure. The node agent's checks (nri_plugin/policy/checks.py) apply to these containers too. These
rules are of what Docker has beside them, and their texts name docker's options.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpuslice.contract import names
from nri_plugin.policy import nvidia
from nri_plugin.policy.model import Mount
from nri_plugin.policy.places import Destinations, is_below, normal

_UNLIMITED: Final = "it can give a GPU without a limit; --memory and --gpu give one with a limit"
_ESCAPES: Final = "with it a program can remove the limit"
_FLAGS: Final[Mapping[str, str]] = {
    "--privileged": "it gives access to every GPU of the machine",
    "--gpus": _UNLIMITED,
    "--device": _UNLIMITED,
    "--device-cgroup-rule": _UNLIMITED,
    "--runtime": "the limit holds under the daemon's own runtime or NVIDIA's; gpuslice selects it",
    "--pid": _ESCAPES,
    "--cap-add": _ESCAPES,
    "--security-opt": _ESCAPES,
    "--userns": _ESCAPES,
    "--volumes-from": "its mounts cannot be checked; mount the volumes by -v",
    "--mount": "its mounts cannot be checked; mount directories and volumes by -v",
    "--tmpfs": "its mounts cannot be checked; mount a volume by -v",
}
"""Options of docker run that are refused for a reason."""
_OURS: Final = Destinations((names.CONTAINER_DIR, *names.CONTAINER_PRELOADS))
_LIMITS: Final = (names.ENV_MEMORY_LIMIT, names.ENV_CORE_LIMIT, names.ENV_SHARED_CACHE)
_HIDES: Final = "must not hide or move {}, on which the limit depends"
_TYPES: Final = ("nfs", "nfs4", "cifs", "tmpfs", "none", "bind")
"""Types of named volumes. The last two mount a directory, which is judged. Others show devices."""
_EMPTY: Final = "''"
_OPTIONS: Final = (
    ("container name", "name"),
    ("invalid port", "publish"),
    ("external connectivity", "publish"),
    ("no such container", "ipc"),
    ("ipc", "ipc"),
    ("no such container", "network"),
    ("network", "network"),
    ("unable to find user", "user"),
    ("unable to find group", "user"),
    ("restart policy", "restart"),
    ("working directory", "workdir"),
    ("cannot mkdir", "workdir"),
    ("volume", "volume"),
    ("mount point", "volume"),
    ("invalid mode", "volume"),
    ("environment variable", "env"),
    ("reference format", "image"),
)
"""Texts of Docker's errors, and the options of which they are."""


@dataclass(frozen=True, slots=True)
class Volume:
    """A value of -v. source: the host's absolute path that it shows, with links resolved, or "".
    bind: what Docker gets, "" for an anonymous volume. kind: a named volume's type, or ""."""

    text: str
    destination: str
    source: str = ""
    bind: str = ""
    kind: str = ""


def of_flag(flag: str, allowed: Sequence[str]) -> str:
    """Return why an option that the parser does not have is refused."""
    if not flag.startswith("-"):
        return f"{flag}: invalid argument: the container's command must follow --"
    if flag in _FLAGS:
        return f"{flag}: must not be set, because {_FLAGS[flag]}"
    return f"{flag}: invalid option: must be one of {', '.join(allowed)}"


def of_docker(text: str, asked: argparse.Namespace) -> str:
    """Return an error of Docker's with the option and its value, if it is of one that is set."""
    for part, option in _OPTIONS:
        if part in text.lower() and (value := getattr(asked, option)):
            shown = value if isinstance(value, str) else ", ".join(value)
            return f"--{option}: invalid value {shown or _EMPTY}: {text}"
    return text


def volume(
    text: str, resolve: Callable[[str], str], options: Callable[[str], Mapping[str, str]]
) -> Volume:
    """Parse a value of -v as docker does. resolve: makes a path absolute, and resolves its links.
    options: returns those of a named volume, which may mount a directory of the host, too."""
    first, *rest = text.split(":", 2)
    if not rest:
        return Volume(text, first)
    if first.startswith(("/", ".")):
        return Volume(text, rest[0], resolve(first), ":".join((resolve(first), *rest)))
    chosen = options(first)
    source = resolve(chosen.get("device", "/")) if "bind" in chosen.get("o", "") else ""
    return Volume(text, rest[0], source, text, chosen.get("type", ""))


def broken(
    volumes: Sequence[Volume], env: Sequence[str], ipc: str, secret: Sequence[str]
) -> Iterator[str]:
    """Yield the texts of the rules that the user's options break. env: lines KEY=VALUE. ipc: the
    mode of the container that is joined, too. secret: paths of the host that no container may see,
    beside /dev and /proc."""
    hidden = Destinations(("/dev", "/proc", *secret))
    for each in volumes:
        place = normal(each.destination)
        given = f"--volume: invalid value {each.text or _EMPTY}"
        if not each.destination:
            yield f"{given}: must name a path in the container, which is empty here"
        if each.kind and each.kind not in _TYPES:
            yield (
                f"{given}: type of the volume: invalid value {each.kind}: must be one of"
                f" {', '.join(_TYPES)}, because others can show the host's devices; mount the file"
                " system on the host, and its directory by -v"
            )
        if path := _OURS.hidden_by(Mount(place)):
            yield f"{given}: {_HIDES.format(path)}; mount it elsewhere"
        if each.source and (path := hidden.hidden_by(Mount(each.source))):
            yield (
                f"{given}: must not show the host's {path}, with which a program can remove limits;"
                " mount another directory"
            )
        if nvidia.is_request(f"{place}/"):
            yield f"{given}: must not request a GPU by a mount; --gpu selects GPUs"
        if place in ("/dev", "/proc") or is_below(place, "/proc") or nvidia.is_node(place, 0):
            yield (
                f"{given}: must not be mounted at {place}, where a program finds its GPU and its"
                " processes; mount it elsewhere"
            )
    for line in env:
        name = line.partition("=")[0]
        if name == names.ENV_VISIBLE_DEVICES:
            yield f"--env: invalid value {line}: must not select GPUs; --gpu selects them"
        if name.startswith(_LIMITS):
            yield (f"--env: invalid value {line}: must not set a limit; --memory and --core set it")
    if ipc == "host":
        yield (
            "--ipc: invalid value host: must be private, shareable, none or container:NAME of a"
            " container that has its own, because the host's /dev/shm has the grants of its"
            " programs; --shm-size gives more /dev/shm"
        )


def broken_by_image(image: str, volumes: Iterable[str]) -> Iterator[str]:
    """Yield the texts for the paths of an image's VOLUME that lie over ours."""
    for path in volumes:
        if ours := _OURS.hidden_by(Mount(path)):
            yield (
                f"--image: invalid value {image}: its VOLUME {path} {_HIDES.format(ours)}; build"
                " the image without it"
            )
