"""Volcano's configuration, `volcano-scheduler.conf`: which of its GPU resources are on. Pure.

gpuslice reads the arguments that Volcano's plugins `predicates` (to 1.8) and `deviceshare` have for
GPUs, and reports the names of everything else in it. Without the configuration all are on.
Source: volcano pkg/scheduler/plugins (predicates, deviceshare), framework/arguments.go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

NAMESPACE: Final = "volcano-system"
CONFIG_MAP: Final = "volcano-scheduler-configmap"
KEY: Final = "volcano-scheduler.conf"
WHERE: Final = f"ConfigMap {NAMESPACE}/{CONFIG_MAP}"

SHARING: Final = "predicate.GPUSharingEnable"
NUMBER: Final = "predicate.GPUNumberEnable"
VGPU: Final = "deviceshare.VGPUEnable"
ALL: Final = frozenset({SHARING, NUMBER, VGPU})

_ARGUMENTS: Final[Mapping[str, Mapping[str, str]]] = {
    "predicates": {SHARING: SHARING, NUMBER: NUMBER},
    "deviceshare": {
        "deviceshare.GPUSharingEnable": SHARING,
        "deviceshare.GPUNumberEnable": NUMBER,
        VGPU: VGPU,
    },
}
"""By plugin and argument, the switch."""
_YAML: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TRUE: Final = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "false", "FALSE", "False"})
"""Go's strconv.ParseBool."""
_SERVED: Final = "; gpuslice serves both, and each pod must use one of them"
"""Volcano's scheduler exits."""
_TIERS: Final = "tiers"


class ConfError(ValueError):
    """The configuration is unreadable as a whole."""


@dataclass(frozen=True, slots=True)
class Conf:
    """on: of ALL. problems: what Volcano would not accept. ignored: names of what is not ours."""

    on: frozenset[str] = ALL
    problems: Sequence[str] = ()
    ignored: Sequence[str] = ()


def parse(text: str) -> Conf:
    """Raises ConfError."""
    try:
        document = yaml.load(text, Loader=_YAML)
    except Exception as error:  # PyYAML's parsing of a tagged scalar may raise anything
        raise ConfError(f"{KEY}: must be YAML: {_why(error)}") from error
    if document is None:
        document = {}
    if not isinstance(document, dict) or not isinstance(document.get(_TIERS) or [], list):
        raise ConfError(f"{KEY}: must be an object with a list of tiers")
    on: set[str] = set()
    problems: list[str] = []
    ignored = [str(key) for key in document if key != _TIERS]
    for plugin, arguments in _plugins(document):
        known = _ARGUMENTS.get(plugin, {})
        if not known:
            ignored.append(f"plugin {plugin}")
            continue
        for key, value in arguments.items():
            if key not in known:
                ignored.append(f"argument {key}")
                continue
            # No other type is written out: YAML's aliases make small texts into endless values.
            text = str(value) if isinstance(value, (bool, int, str)) else type(value).__name__
            if text in _TRUE:
                on.add(known[key])
            elif text not in _FALSE:
                problems.append(f"{key}: invalid value {text}: must be true or false")
    if {SHARING, NUMBER} <= on:
        problems.append(f"can not define true in both gpu sharing and gpu number{_SERVED}")
    if VGPU in on and on & {SHARING, NUMBER}:
        problems.append(f"gpu-share and vgpu can't be used together{_SERVED}")
    return Conf(frozenset(on), tuple(problems), tuple(dict.fromkeys(ignored)))


def _why(error: Exception) -> str:
    """With the place, and equal for equal texts: a repr of PyYAML's marks has their addresses."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        at = error.problem_mark
        return f"line {at.line + 1}, column {at.column + 1}: {error.problem}"
    return " ".join(str(error).split()) if isinstance(error, yaml.YAMLError) else repr(error)


def _plugins(document: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for tier in document.get(_TIERS) or []:
        for plugin in (tier.get("plugins") if isinstance(tier, dict) else None) or []:
            if isinstance(plugin, dict) and isinstance(plugin.get("name"), str):
                arguments = plugin.get("arguments")
                yield plugin["name"], arguments if isinstance(arguments, dict) else {}
