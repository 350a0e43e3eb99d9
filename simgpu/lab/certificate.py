"""Certificates that sign themselves, each for those who trust it alone.

One is shown by the API server to kubelet; one is etcd's and at the same time that of all who speak
to it. Made by openssl, which Debian's ca-certificates brings along.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

KUBELET_CLIENT: Final = ("/O=system:masters/CN=kube-apiserver", "extendedKeyUsage=clientAuth")
"""The subject is what kubelet takes for its user; the API server then says that he may do all."""
ETCD: Final = (
    "/CN=etcd",
    "extendedKeyUsage=serverAuth,clientAuth",
    "subjectAltName=IP:127.0.0.1",
)
_DAYS: Final = "365"


class CertificateError(RuntimeError):
    """openssl is missing, or refuses; the text is what it says."""


def make(certificate: Path, key: Path, kind: Sequence[str]) -> None:
    """kind: its subject and its extensions. The key is for its owner alone to read. Raises
    CertificateError."""
    subject, *extensions = kind
    key.touch(mode=0o600)  # openssl writes into what is there
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
