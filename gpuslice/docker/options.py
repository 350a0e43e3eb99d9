"""The options of `gpuslice run --image`: those of a limit, and those of `docker run` that it has.

refusals.py judges the values.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from gpuslice.docker import refusals
from shim import limits

_USAGE: Final = """gpuslice run --memory SIZE [--core PERCENT] [OPTION]... --image IMAGE \
[-- CMD [ARG]...]
       gpuslice run --memory SIZE [--core PERCENT] [OPTION]... -- CMD [ARG]..."""
_ABOUT: Final = """Run one Docker container that sees and gets at most --memory of each GPU, and
--core percent of its time. Without --image, run a program of this machine under such limits.

The exit status is the container's; 125 where it was not started, 126 where CMD cannot be executed,
127 where it is not found. Other containers and programs get only what is left of the GPU, until
the container is removed. `gpuslice ps` shows the parts in use, and `gpuslice rm NAME` frees one.
-d and --restart need the service that `gpuslice host install` installs. Root is required."""
_EPILOG: Final = """examples:
  gpuslice run --memory 10GiB --core 30 --image nvidia/cuda:12.9.1-base-ubuntu24.04 -- nvidia-smi
  gpuslice run --memory 8GiB --image pytorch/pytorch --rm -it -v "$PWD:/work" -w /work -- bash
  gpuslice run --memory 50% --image my/server --name web -d -p 8000:8000 --restart always
  gpuslice run --memory 20GiB -- python train.py
"""
_SIZE: Final = re.compile(r"([0-9]+)([kmgt]?)(i?b)?", re.IGNORECASE)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options, with the container's command. Raises UsageError."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    given, command = arguments[:end], arguments[end + 1 :]
    parser = _parser()
    options, unknown = parser.parse_known_args(given)
    for each in sorted(unknown, key=lambda word: not word.startswith("-")):
        flags = [action.option_strings[-1] for action in parser._actions]
        raise limits.UsageError(refusals.of_flag(each.partition("=")[0], flags))
    options.command = command
    return options


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise limits.UsageError(message.removeprefix("argument "))


def _parser() -> argparse.ArgumentParser:
    layout = argparse.RawDescriptionHelpFormatter
    parser = _Parser("gpuslice run", _USAGE, _ABOUT, _EPILOG, formatter_class=layout)
    parser.allow_abbrev = False
    limits.add_options(parser)
    for names, values, about in _DOCKER:
        parser.add_argument(*names.split(), **values, help=about)
    return parser


def _size(text: str) -> int:
    """Return the bytes of a size as docker writes it, 64m, or as gpuslice does, 8GiB."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"invalid value {text!r}: must be a size, as 64m or 8GiB")
    return int(match[1]) << 10 * " kmgt".index(match[2].lower() or " ")


def _text(metavar: str, default: str | None = "") -> Mapping[str, Any]:
    return {"metavar": metavar, "default": default}


def _list(metavar: str) -> Mapping[str, Any]:
    return {"metavar": metavar, "default": [], "action": "append"}


_SWITCH: Final[Mapping[str, Any]] = {"action": "store_true"}
_DOCKER: Final[Sequence[tuple[str, Mapping[str, Any], str]]] = (
    ("--image", {"required": True}, "the container's image; pulled if it is absent"),
    ("-e --env", _list("KEY[=VALUE]"), "a variable; without a value: this process's"),
    ("-v --volume", _list("SOURCE:PATH[:OPTIONS]"), "mount a directory or a volume"),
    ("-p --publish", _list("[IP:][PORT:]PORT"), "publish a port"),
    ("--name", _text("NAME"), "the container's name (default: gpuslice-KEY)"),
    ("--rm", _SWITCH, "remove the container when it ends, and free its share"),
    ("-d --detach", _SWITCH, "print the container's id, and do not wait"),
    ("-i --interactive", _SWITCH, "pass standard input on"),
    ("-t --tty", _SWITCH, "give the container a terminal"),
    ("--shm-size", {"type": _size, "metavar": "SIZE"}, "of /dev/shm, as 64m or 8GiB"),
    ("--ipc", _text("MODE"), "private, shareable, none or container:NAME"),
    ("--network", _text("NETWORK"), "bridge, host, none or a network's name"),
    ("-u --user", _text("USER[:GROUP]"), "the user of CMD"),
    ("--entrypoint", _text("PROGRAM", None), "instead of the image's"),
    ("-w --workdir", _text("PATH"), "the working directory of CMD"),
    ("--restart", _text("POLICY", "no"), "as of docker run"),
)
