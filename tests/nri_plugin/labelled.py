"""The node agent as on a node whose kernel runs SELinux.

`python -m tests.nri_plugin.labelled POLICY AGENT'S FLAGS`

The kernel here has no SELinux. So its answers are this module's: that it enforces, the label of
containers, that of a file, and what the policy lets one use of the other. POLICY `knows-type`:
mounts with a label succeed, and their files have it. `lacks-type`: the mount is the real one, which
this kernel refuses as that policy does. All decisions are the agent's own.
"""

from __future__ import annotations

import sys
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from gpuslice.contract import names
from nri_plugin import __main__ as agent
from nri_plugin.host import bundle, selinux, tmpfs

_SUBJECT: Final = "system_u:system_r:container_t:s0:c1,c2"
_OF_TMPFS: Final = "system_u:object_r:tmpfs_t:s0"
_KNOWS: Final = "knows-type"

_mount, _config = tmpfs._mount, bundle.config
_labelled: Final[set[str]] = set()


def _labelling(path: Path, source: str, options: str) -> None:
    plain, _, _ = options.partition(",context=")
    _mount(path, source, plain)
    if plain != options:
        _labelled.add(str(path))


def _label_of(path: str | Path) -> str:
    places = (str(each) for each in (path, *Path(path).parents))
    return selinux.LABEL if _labelled & {*places} else _OF_TMPFS


def _denied(
    policy: object, subject: str, target: str, wanted: AbstractSet[str], kind: str
) -> AbstractSet[str]:
    assert subject == _SUBJECT
    return frozenset() if target == selinux.LABEL else wanted


def main() -> int:
    program, policy, *flags = sys.argv
    selinux.enforcing = lambda host: True
    selinux._label = lambda containerd_state, sandbox_id: _SUBJECT
    bundle.config = lambda bundle: replace(_config(bundle), selinux_label=_SUBJECT)
    selinux.label_of = _label_of
    selinux.Policy._denied = _denied  # type: ignore[method-assign, assignment]
    if policy == _KNOWS:  # an earlier agent may have mounted the store, and labelled it
        _labelled.add(f"{flags[flags.index('--run-dir') + 1]}/{names.DIR_STORE}")
    call = _labelling if policy == _KNOWS else _mount
    tmpfs.mount = partial(tmpfs.mount, label=selinux.LABEL, call=call)
    sys.argv = [program, *flags]
    return agent.main()


if __name__ == "__main__":
    sys.exit(main())
