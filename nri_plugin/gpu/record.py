"""A file in the run directory, by which a restarted agent knows the GPUs.

The file has the GPUs that NVML listed last, their XID errors, and the sizes of contexts by driver
version and product. GPUs and errors are valid until the driver is loaded again. Sizes stay valid.
A file that cannot be read is ignored.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

from gpuslice.kube.log_lines import Line
from nri_plugin.policy.model import Gpu
from nri_plugin.threads import Worker

_LOG: Final = logging.getLogger(__name__)

FILE: Final = ".gpus.json"
NEW: Final = f"{FILE}.new"
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_MODULE: Final = Path("/sys/module/nvidia")


def load_id() -> str:
    """Return a text that changes with each boot and each load of the driver's module, for which
    sysfs creates a directory with another inode."""
    boot = _BOOT.read_text().strip()
    try:
        return f"{boot} {_MODULE.stat().st_ino}"
    except OSError:  # no such module: a simulated driver
        return boot


class Record:
    """The file's content. A separate thread writes the file, only after `begin`: by then this agent
    serves the node. Without `run_dir` there is no file."""

    def __init__(self, run_dir: Path | None = None, load: str | None = None) -> None:
        self._path = run_dir and run_dir / FILE
        self._load = load_id() if load is None else load
        self._worker: Worker | None = None
        self.gpus: Sequence[Gpu] = ()
        self.xids: Mapping[str, int] = {}
        """The first XID error of each GPU, by UUID."""
        self.contexts: Mapping[str, int] = {}
        """Sizes of contexts in bytes, by `model_key`."""
        self._read()

    def begin(self) -> None:
        """Write from now on. Include what another agent has written since the file was read."""
        gpus, xids, contexts = self.gpus, self.xids, self.contexts
        self._read()
        self._worker = Worker("record of GPUs") if self._path else None
        self.keep(
            gpus=gpus or self.gpus,
            xids={**xids, **self.xids},
            contexts={**self.contexts, **contexts},
            changed=True,
        )

    def keep(
        self,
        *,
        gpus: Sequence[Gpu] | None = None,
        xids: Mapping[str, int] | None = None,
        contexts: Mapping[str, int] | None = None,
        changed: bool = False,
    ) -> None:
        """Replace the given parts. Write the file if one changes, or if `changed` is true."""
        before = (self.gpus, self.xids, self.contexts)
        self.gpus = self.gpus if gpus is None else gpus
        self.xids = self.xids if xids is None else xids
        self.contexts = self.contexts if contexts is None else contexts
        changed = changed or before != (self.gpus, self.xids, self.contexts)
        if self._worker is not None and changed:
            document = {
                "load": self._load,
                "gpus": [asdict(gpu) for gpu in self.gpus],
                "xids": self.xids,
                "contexts": self.contexts,
            }
            self._worker.post(partial(self._write, json.dumps(document)))

    def _read(self) -> None:
        if self._path is None:
            return
        try:
            document: dict[str, Any] = json.loads(self._path.read_bytes())
            contexts = {str(model): int(size) for model, size in document["contexts"].items()}
            gpus = tuple(Gpu(**gpu) for gpu in document["gpus"])
            xids = {str(uuid): int(xid) for uuid, xid in document["xids"].items()}
            is_of_this_load = document["load"] == self._load
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return
        self.contexts = contexts
        if is_of_this_load:
            self.gpus, self.xids = gpus, xids

    def _write(self, text: str) -> None:
        assert self._path is not None
        new = self._path.with_name(NEW)
        try:
            new.write_text(text)
            os.replace(new, self._path)
        except OSError as error:
            _LOG.warning(Line("record of GPUs not written", path=self._path, error=error))


def model_key(driver: str, model: str) -> str:
    return f"{driver} {model}"
