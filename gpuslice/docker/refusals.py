"""What no container of `gpuslice run --image` may have, with the reason.

Pure. The node agent's checks (nri_plugin/policy/checks.py) apply to these containers too. These
rules are of what Docker has beside them, and their texts name docker's options.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from gpuslice.contract import names
from nri_plugin.policy import nvidia
from nri_plugin.policy.model import Mount
from nri_plugin.policy.places import Destinations, is_below, normal

_UNLIMITED: Final = "it gives a GPU without a limit; --memory and --gpu give one with a limit"
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


class Rule(Enum):
    """A rule's text. The fields in braces are the caller's."""

    HIDES = (
        "--volume: invalid value {value}: must not hide or move {path}, on which the limit depends;"
        " mount it elsewhere"
    )
    SHOWS = (
        "--volume: invalid value {value}: must not show the host's {path}, with which a program"
        " can remove limits; mount another directory"
    )
    REPLACES = (
        "--volume: invalid value {value}: must not be mounted at {path}, where a program finds its"
        " GPU and its processes; mount it elsewhere"
    )
    REQUESTS = (
        "--volume: invalid value {value}: must not request a GPU by a mount; --gpu selects GPUs"
    )
    SELECTS = "--env: invalid value {value}: must not select GPUs; --gpu selects them"
    LIMITS = "--env: invalid value {value}: must not set a limit; --memory and --core set it"
    IPC = (
        "--ipc: invalid value {value}: must be private, shareable, none or container:NAME, because"
        " the host's /dev/shm has the grants of its programs; --shm-size gives more /dev/shm"
    )
    IMAGE_VOLUME = (
        "--image: invalid value {value}: its VOLUME {path} must not hide or move {ours}, on which"
        " the limit depends; build the image without it"
    )


@dataclass(frozen=True, slots=True)
class Volume:
    """A value of -v. source: an absolute path of the host with links resolved, else ""."""

    text: str
    destination: str
    source: str = ""


def of_flag(flag: str, allowed: Sequence[str]) -> str:
    """Return why an option that the parser does not have is refused."""
    if not flag.startswith("-"):
        return f"{flag}: invalid argument: the container's command must follow --"
    if flag in _FLAGS:
        return f"{flag}: must not be set, because {_FLAGS[flag]}"
    return f"{flag}: invalid option: must be one of {', '.join(allowed)}"


def volume(text: str, resolve: Callable[[str], str]) -> Volume:
    """Parse a value of -v as docker does. resolve: makes a path absolute, and resolves its
    links."""
    first, *rest = text.split(":", 2)
    if not rest:
        return Volume(text, first)
    return Volume(text, rest[0], resolve(first) if first.startswith(("/", ".")) else "")


def broken(
    volumes: Sequence[Volume], env: Sequence[str], ipc: str, secret: Sequence[str]
) -> Iterator[str]:
    """Yield the texts of the rules that the user's options break. env: lines KEY=VALUE. secret:
    paths of the host that no container may see, beside /dev and /proc."""
    hidden = Destinations(("/dev", "/proc", *secret))
    for each in volumes:
        value, place = each.text, normal(each.destination)
        if path := _OURS.hidden_by(Mount(place)):
            yield Rule.HIDES.value.format(value=value, path=path)
        if each.source and (path := hidden.hidden_by(Mount(each.source))):
            yield Rule.SHOWS.value.format(value=value, path=path)
        if nvidia.is_request(f"{place}/"):
            yield Rule.REQUESTS.value.format(value=value)
        if place in ("/dev", "/proc") or is_below(place, "/proc") or nvidia.is_node(place, 0):
            yield Rule.REPLACES.value.format(value=value, path=place)
    for line in env:
        name = line.partition("=")[0]
        if name == names.ENV_VISIBLE_DEVICES:
            yield Rule.SELECTS.value.format(value=line)
        if name.startswith(_LIMITS):
            yield Rule.LIMITS.value.format(value=line)
    if ipc == "host":
        yield Rule.IPC.value.format(value=ipc)


def broken_by_image(image: str, volumes: Iterable[str]) -> Iterator[str]:
    """Yield the texts for the paths of an image's VOLUME that lie over ours."""
    for path in volumes:
        if ours := _OURS.hidden_by(Mount(path)):
            yield Rule.IMAGE_VOLUME.value.format(value=image, path=path, ours=ours)
