"""Which bindings of admission policies are to refuse instead of warn, and by which patch.

Pure. The chart installs a binding with validationActions [Warn] and the label
contract.names.LABEL_ADMISSION, so that an installation whose scheduler never starts refuses no pod.
A binding without the label, with another value of it, or with other actions is an operator's choice
and stays.
"""

from __future__ import annotations

from typing import Final

from contract import names
from scheduler.kubernetes.requests import Json, at

COLLECTION: Final = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
SELECTOR: Final = f"{names.LABEL_ADMISSION}={names.ADMISSION_AUTO}"


def denial(binding: Json) -> Json | None:
    """Returns the patch by which the binding refuses; None: it is left as it is. The patch names
    the version that was read, so that it never undoes a later change."""
    metadata = at(binding, "metadata")
    is_auto = at(metadata, "labels").get(names.LABEL_ADMISSION) == names.ADMISSION_AUTO
    if not is_auto or at(binding, "spec").get("validationActions") != ["Warn"]:
        return None
    return {
        "metadata": {"resourceVersion": metadata.get("resourceVersion")},
        "spec": {"validationActions": ["Deny"]},
    }
