"""Self-signed certificates, each trusted by its own peers alone.

The API server presents one to kubelet. etcd and its clients share another. openssl makes them;
Debian's ca-certificates depends on it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

KUBELET_CLIENT: Final = ("/O=system:masters/CN=kube-apiserver", "extendedKeyUsage=clientAuth")
"""kubelet takes the subject as its client's user; the API server then authorises every request."""
ETCD: Final = (
    "/CN=etcd",
    "extendedKeyUsage=serverAuth,clientAuth",
    "subjectAltName=IP:127.0.0.1",
)
_DAYS: Final = "365"


class CertificateError(RuntimeError):
    """openssl is missing, or refuses; the text is its output."""


def make(certificate: Path, key: Path, kind: Sequence[str]) -> None:
    """kind: subject and extensions. Only the owner may read the key. Raises CertificateError."""
    subject, *extensions = kind
    key.touch(mode=0o600)  # openssl writes into the existing file
    command = [
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
        *("-nodes", "-keyout", str(key), "-out", str(certificate), "-days", _DAYS),
        *("-subj", subject, *(word for each in extensions for word in ("-addext", each))),
    ]
    try:
        done = subprocess.run(command, text=True, capture_output=True)
    except FileNotFoundError as error:
        raise CertificateError("openssl is not installed (apt-get install openssl)") from error
    if done.returncode != 0:
        raise CertificateError(f"openssl: {done.stderr.strip()}")
