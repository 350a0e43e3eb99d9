"""Follows Volcano's ConfigMap, whose arguments turn the resources of its dialect on and off.

A configuration that cannot be read leaves the previous one in force, as in Volcano. Without the
ConfigMap all resources are on. Each new configuration is logged once, with the names in it that
gpuslice does not read; what Volcano would not accept in it also becomes an Event of the ConfigMap.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from kube.client import Kube
from kube.fields import Json, at, texts
from kube.log_lines import Line
from kube.reflector import Reflector
from scheduler.dialects.volcano_conf import (
    CONFIG_MAP,
    KEY,
    NAMESPACE,
    Conf,
    ConfError,
    parse,
)

_LOG: Final = logging.getLogger(__name__)
_PATH: Final = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
_NOTHING_ON: Final = Conf(frozenset())


class VolcanoConfiguration:
    """A watch's sink. Call `connect` before the watch starts."""

    def __init__(self) -> None:
        self.uid = ""
        self.conf = Conf()
        self._text: str | None = None

    def connect(self, changed: Callable[[frozenset[str]], None]) -> None:
        """changed: receives the kinds of resources that are on, now and later."""
        self._changed = changed
        changed(self.conf.on)

    def reflector(self, kube: Kube, **more: Any) -> Reflector:
        only = {"fieldSelector": f"metadata.name={CONFIG_MAP}"}
        return Reflector(kube, _PATH, self, query=only, **more)

    def observed(self, raw: Json) -> str:
        self.uid = str(at(raw, "metadata").get("uid", ""))
        before, self._text = self._text, texts(raw, "data").get(KEY, "")
        if before != self._text:
            try:
                conf = parse(self._text)
            except ConfError as error:
                last = _NOTHING_ON if before is None else self.conf
                conf = replace(last, problems=(str(error),))
            self._set(conf)
        return CONFIG_MAP

    def deleted(self, raw: Json) -> None:
        self.listed(set())

    def listed(self, keys: set[str]) -> None:
        if not keys and self._text is not None:
            self._text = None
            self._set(Conf())

    def _set(self, conf: Conf) -> None:
        self.conf = conf
        self._changed(conf.on)
        fields = {"on": conf.on, "problems": conf.problems, "not_read": conf.ignored}
        line = Line(
            "volcano configuration", **{key: ", ".join(sorted(v)) for key, v in fields.items()}
        )
        _LOG.log(logging.WARNING if conf.problems else logging.INFO, line)
