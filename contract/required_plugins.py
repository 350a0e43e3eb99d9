"""The annotations by which a pod with a grant requires the node agent, of NRI's default validator.

Pure. The scheduler writes them in the Binding, beside the allocation and in the same write, so that
they overwrite the author's: the validator reads the container's scope, then the pod's, then the
bare key, and takes the first that is there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Final

from contract import names

MAX_KEY_CHARS: Final = 63
"""Of an annotation's key, behind the slash. A Binding's annotations are not checked against it, but
every later write of the pod is: a longer key bricks the pod."""

MAX_CONTAINER_NAME_CHARS: Final = MAX_KEY_CHARS - len(names.SCOPE_CONTAINER.removeprefix("/"))
"""A longer name is covered by the pod's scope; its author cannot write a key of its own either."""

_VALUE: Final = json.dumps([names.PLUGIN_NAME])
_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def binding_annotations(container_names: Iterable[str]) -> Mapping[str, str]:
    """For a pod in which the containers of these names have a grant: all that must be written.

    Raises ValueError for a name that Kubernetes does not allow a container.
    """
    written = {names.ANNOTATION_REQUIRED_PLUGINS + names.SCOPE_POD: _VALUE}
    for name in container_names:
        if not _LABEL.fullmatch(name):
            raise ValueError(f"{name!r} is not a container's name")
        if len(name) <= MAX_CONTAINER_NAME_CHARS:
            written[names.ANNOTATION_REQUIRED_PLUGINS + names.SCOPE_CONTAINER + name] = _VALUE
    return written
