"""Which bindings of admission policies are to refuse instead of warn, and by which patch.

Pure. The chart installs a binding with validationActions [Audit] and the label
LABEL_ADMISSION, and another one that warns, so that an installation whose scheduler never starts
refuses no pod. Beside Deny, which stays in a server-side apply of the chart, Audit is
valid and Warn is not. A binding without the label, with another value of it, or with other actions
is an operator's choice and stays.
"""

from __future__ import annotations

from typing import Final

from gpuslice.contract import names
from gpuslice.kube.fields import Json, at

COLLECTION: Final = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
_OPEN: Final = (["Audit"], ["Warn"])
WARNS: Final = "-warn"
"""Suffix of the binding that warns; the warning is redundant once the other one refuses."""
AUDIT_ONLY: Final[Json] = {"spec": {"validationActions": ["Audit"]}}
"""Its patch. It is not deleted, because Helm waits for the chart's objects."""
SELECTOR: Final = f"{names.LABEL_ADMISSION}={names.ADMISSION_AUTO}"


def denial(binding: Json) -> Json | None:
    """Returns the patch by which the binding refuses; None: it is left as it is. The patch names
    the version that was read, so that it never undoes a later change."""
    metadata = at(binding, "metadata")
    is_auto = at(metadata, "labels").get(names.LABEL_ADMISSION) == names.ADMISSION_AUTO
    if not is_auto or at(binding, "spec").get("validationActions") not in _OPEN:
        return None
    return {
        "metadata": {"resourceVersion": metadata.get("resourceVersion")},
        "spec": {"validationActions": ["Deny"]},
    }


def refuses(binding: Json) -> bool:
    return "Deny" in (at(binding, "spec").get("validationActions") or ())
