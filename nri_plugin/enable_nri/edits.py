"""Edits that turn containerd's NRI on: the drop-in, and an imports line. Pure.

Where containerd has NRI's default validator (2.2), it is turned on too: without it, pods with a
share that start before the agent, as after a restart of the node, run without their GPU. It affects
only pods that name a required plugin.

containerd reads a drop-in only if the main file imports it: its default pattern is only in
`config default`, not in a file without the line. containerd 1.7 replaces a plugin's table by
the drop-in's as a whole, later ones merge by key; therefore for 1.7 the drop-in repeats the table.
Source: containerd's mergeConfig and resolveImports, releases 1.7.35, 2.2.9 and 2.4.2.
"""

from __future__ import annotations

import copy
import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any, Final

NRI: Final = "io.containerd.nri.v1.nri"
_VALIDATOR: Final = "default_validator"
_REPLACES_TABLES: Final = 2
"""The configuration's version in containerd 1.7."""
_HEADER: Final = """\
# Written by gpuslice (python -m nri_plugin enable-nri), which needs containerd's NRI.
# To turn NRI off again: remove this file, then restart containerd.
"""
_IMPORTS: Final = re.compile(r"^imports\s*=\s*\[(?P<body>[^\]]*)\]", re.MULTILINE)
_VERSION: Final = re.compile(r"^version\s*=.*$", re.MULTILINE)
_IGNORED: Final = ("imports", "version")
"""Keys of the effective configuration that may differ, because a drop-in was added."""


class EditError(Exception):
    """The file cannot be edited safely; the text says what to do."""


def table(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return NRI's part of an effective configuration."""
    found: Mapping[str, Any] = config.get("plugins", {}).get(NRI, {})
    return found


def wanted(effective: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that NRI's part of the configuration must have."""
    validator = {_VALIDATOR: {"enable": True}} if _VALIDATOR in table(effective) else {}
    return {"disable": False, **validator}


def is_on(effective: Mapping[str, Any]) -> bool:
    return table(effective) == _with_wanted(effective)


def _with_wanted(effective: Mapping[str, Any]) -> dict[str, Any]:
    """Return NRI's part of the configuration with the wanted settings in it."""
    now = table(effective)
    return {
        **now,
        **{
            key: {**now[key], **value} if isinstance(value, Mapping) else value
            for key, value in wanted(effective).items()
        },
    }


def drop_in(effective: Mapping[str, Any]) -> str:
    """Return the drop-in's text for this effective configuration (`containerd config dump`)."""
    version = int(effective["version"])
    written = _with_wanted(effective) if version == _REPLACES_TABLES else wanted(effective)
    lines = [f"version = {version}", *_table_lines(f"plugins.'{NRI}'", written)]
    return _HEADER + "\n".join(lines) + "\n"


def with_import(main: str, pattern: str) -> str:
    """Return the main file's text with `pattern` among its imports. Raises EditError."""
    before = parsed(main)
    imports = before.get("imports", [])
    if pattern in imports:
        return main
    found = _IMPORTS.search(main)
    if found is not None:
        listed = ", ".join(map(json.dumps, (*imports, pattern)))
        text = main[: found.start()] + f"imports = [{listed}]" + main[found.end() :]
    else:
        line = f"imports = [{json.dumps(pattern)}]\n"
        version = _VERSION.search(main)
        at = version.end() + 1 if version else 0
        text = main[:at] + ("\n" if at > len(main) else "") + line + main[at:]
    try:
        same = tomllib.loads(text) == {**before, "imports": [*imports, pattern]}
    except tomllib.TOMLDecodeError:
        same = False
    if not same:
        raise EditError(
            "imports: invalid value: must have the form imports = [PATH, ...] without other"
            f' brackets; add "{pattern}" to it by hand'
        )
    return text


def parsed(main: str) -> dict[str, Any]:
    """Parse the main file, "" if there is none. Raises EditError."""
    try:
        config = tomllib.loads(main)
    except tomllib.TOMLDecodeError as error:
        raise EditError(f"must be TOML: {error}") from error
    if main and config.get("version", 1) < 2:
        raise EditError(
            f"version: invalid value {config.get('version', 1)}: must be 2 or later; see"
            " 'containerd config migrate'"
        )
    if NRI in config.get("disabled_plugins", ()):
        raise EditError(f"disabled_plugins: invalid value {NRI!r}: must be absent")
    return config


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return what is wrong with the effective configuration after the change; "": NRI is on, and
    nothing else differs."""
    if not is_on(after):
        return "NRI is still off in the effective configuration: another drop-in turns it off"
    expected = copy.deepcopy(dict(before))
    expected.setdefault("plugins", {})[NRI] = _with_wanted(before)
    for key in sorted({*expected, *after} - {*_IGNORED}):
        if expected.get(key) != after.get(key):
            return f"{key}: the effective configuration would change in more than NRI"
    return ""


def _table_lines(name: str, values: Mapping[str, Any]) -> list[str]:
    plain = {key: value for key, value in values.items() if not isinstance(value, Mapping)}
    lines = [f"[{name}]", *(f"  {key} = {_value(value)}" for key, value in plain.items())]
    for key, value in values.items():
        if isinstance(value, Mapping):
            lines += _table_lines(f"{name}.{key}", value)
    return lines


def _value(value: Any) -> str:
    """Return it as TOML: JSON's strings, numbers, booleans and lists are TOML, too."""
    return json.dumps(value, ensure_ascii=False)
