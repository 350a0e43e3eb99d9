"""The annotations that make NRI's default validator require the agent for a pod with a grant.

Pure. The scheduler writes them in the Binding, in the same write as the allocation, so that they
overwrite the pod author's values. The validator reads the container's scope, then the pod's, then
the bare key, and uses the first that exists.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Final

from gpuslice.contract import names

MAX_KEY_CHARS: Final = 63
"""Kubernetes' limit for the part of an annotation key after the slash. The API server does not
check it in a Binding, but in every later write: with a longer key the pod could not be updated."""

MAX_CONTAINER_NAME_CHARS: Final = MAX_KEY_CHARS - len(names.SCOPE_CONTAINER.removeprefix("/"))
"""A container with a longer name is covered only by the pod's scope. The pod's author cannot write
a key for such a name either."""

_VALUE: Final = json.dumps([names.PLUGIN_NAME])
_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def binding_annotations(container_names: Iterable[str]) -> Mapping[str, str]:
    """Return all annotations to write for a pod in which these containers have a grant. Raises
    ValueError for a name that Kubernetes does not allow for a container."""
    written = {names.ANNOTATION_REQUIRED_PLUGINS + names.SCOPE_POD: _VALUE}
    for name in container_names:
        if not _LABEL.fullmatch(name):
            raise ValueError(f"{name!r} is not a container's name")
        if len(name) <= MAX_CONTAINER_NAME_CHARS:
            written[names.ANNOTATION_REQUIRED_PLUGINS + names.SCOPE_CONTAINER + name] = _VALUE
    return written
