"""Tells the agent's own lack of descriptors or memory from a fault of the file that it reads.

Such an error says nothing about the file. So it must not become "not found", "not in place" or a
fault of the operator's configuration: a container with a share is refused for this reason, which
the kubelet retries, and a check reports nothing.
"""

from __future__ import annotations

import errno
from typing import Final

from nri_plugin.policy.refusals import Reason, Refused, refused

_CODES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def raise_shortage(error: BaseException) -> None:
    """Raise Refused if the error is a shortage."""
    if isinstance(error, OSError) and error.errno in _CODES:
        raise refused(Reason.SHORTAGE, problem=error) from error


def is_shortage(error: BaseException) -> bool:
    """Whether `raise_shortage` raised it."""
    return isinstance(error, Refused) and error.refusal.reason is Reason.SHORTAGE
