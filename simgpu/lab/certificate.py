"""A certificate for the API server to show to kubelets, who trust it alone: it signs itself.

Made by openssl, which Debian's ca-certificates brings along.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

_SUBJECT: Final = "/O=system:masters/CN=kube-apiserver"
"""What kubelet takes for its user; the API server then says that he may do everything."""
_DAYS: Final = "365"


class CertificateError(RuntimeError):
    """openssl is missing, or refuses; the text is what it says."""


def make(certificate: Path, key: Path) -> None:
    """Raises CertificateError."""
    command = [
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
        *("-nodes", "-keyout", str(key), "-out", str(certificate), "-days", _DAYS),
        *("-subj", _SUBJECT, "-addext", "extendedKeyUsage=clientAuth"),
    ]
    try:
        done = subprocess.run(command, text=True, capture_output=True)
    except FileNotFoundError as error:
        raise CertificateError("openssl is not installed (apt-get install openssl)") from error
    if done.returncode != 0:
        raise CertificateError(f"openssl: {done.stderr.strip()}")
