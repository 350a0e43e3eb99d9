"""What this node has prepared, on disk: a record and a CDI spec per claim.

The record of a claim is written before its CDI spec, and removed after it. A claim that the kubelet
may use is therefore always counted. The records' directory exists while the front end is `claims`.
It is in the kubelet's directory, and survives a reboot as the kubelet's own records do. The specs
do not, and the kubelet prepares the claims of its pods again.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from gpuslice.contract import names
from gpuslice.kube.log_lines import Line
from nri_plugin.host.discovery import CDI_DIRS
from nri_plugin.policy.device_claims import ClaimedShare, Prepared
from nri_plugin.settings import Settings

_LOG: Final = logging.getLogger(__name__)

_CDI_VERSION: Final = "0.6.0"


@dataclass(frozen=True, slots=True)
class ClaimStore:
    """plugin_dir: the directory of this plugin in the kubelet's. cdi_dir: a directory of CDI specs
    that the runtime reads. All calls block, and raise OSError."""

    plugin_dir: Path
    cdi_dir: Path

    @property
    def records(self) -> Path:
        return self.plugin_dir / "claims"

    def load(self) -> Mapping[str, Prepared] | None:
        """Return the prepared claims by UID. None: the front end was not `claims`."""
        if not self.records.is_dir():
            return None
        found = {}
        for path in sorted(self.records.glob("*.json")):
            try:
                raw = json.loads(path.read_bytes())
                shares = [ClaimedShare(**share) for share in raw.pop("shares")]
                found[path.stem] = Prepared(**raw, shares=shares)
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                # Running containers keep their shares. Further ones of the pod are refused.
                _LOG.error(Line("record of a claim cannot be read", path=path, error=repr(error)))
        return found

    def begin(self) -> None:
        self.records.mkdir(mode=0o700, parents=True, exist_ok=True)

    def end(self) -> None:
        shutil.rmtree(self.records, ignore_errors=True)

    def put(self, claim: Prepared) -> None:
        _write(self._record(claim.uid), asdict(claim))
        place = names.CONTAINER_CLAIM
        mount = {"hostPath": place, "containerPath": place, "options": ["bind", "ro"]}
        edits = {"mounts": [mount]}
        devices = [{"name": share.name, "containerEdits": edits} for share in claim.shares]
        spec = {"cdiVersion": _CDI_VERSION, "kind": names.CDI_KIND_CLAIM, "devices": devices}
        _write(self._spec(claim.uid), spec)

    def drop(self, uid: str) -> None:
        """Remove the claim's files. Idempotent."""
        self._spec(uid).unlink(missing_ok=True)
        self._record(uid).unlink(missing_ok=True)

    def paths(self) -> Sequence[Path]:
        """Return all that the store has written."""
        specs = sorted(self.cdi_dir.glob(f"{names.CDI_FILE_CLAIM}*"))
        return [*specs, self.plugin_dir] if self.plugin_dir.is_dir() else specs

    def _record(self, uid: str) -> Path:
        return self.records / f"{uid}.json"

    def _spec(self, uid: str) -> Path:
        return self.cdi_dir / f"{names.CDI_FILE_CLAIM}{uid}.json"


def store_of(settings: Settings) -> ClaimStore:
    """Return the agent's store. Every runtime reads the last of CDI's standard directories."""
    return ClaimStore(plugin_dir(settings.kubelet_dir), settings.view.seen(CDI_DIRS[-1]))


def plugin_dir(kubelet_dir: Path) -> Path:
    return kubelet_dir / "plugins" / names.DRA_DRIVER


def _write(path: Path, document: Mapping[str, Any]) -> None:
    new = path.with_suffix(".new")
    path.parent.mkdir(parents=True, exist_ok=True)
    new.write_text(json.dumps(document))
    os.replace(new, path)
