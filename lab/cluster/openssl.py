"""Keys, and self-signed certificates that only their own peers trust, made by the program openssl.

Debian's package ca-certificates installs openssl.
"""

from __future__ import annotations

import subprocess
from pathlib import Path


class OpensslError(RuntimeError):
    """openssl is missing or fails. The text is its output."""


def private_key() -> str:
    """Return a new private key as PEM. Raises OpensslError."""
    return _output("ecparam", "-name", "prime256v1", "-genkey", "-noout")


def make_certificate(certificate: Path, key: Path, subject: str, *extensions: str) -> None:
    """Write the certificate and its key. Only the owner may read the key. Raises OpensslError."""
    key.touch(mode=0o600)  # openssl keeps an existing file's mode
    more = (word for each in extensions for word in ("-addext", each))
    files = ("-keyout", str(key), "-out", str(certificate))
    key_options = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    _output("req", "-x509", *key_options, "-days", "365", "-subj", subject, *files, *more)


def _output(*words: str) -> str:
    try:
        done = subprocess.run(["openssl", *words], text=True, capture_output=True)
    except FileNotFoundError as error:
        raise OpensslError("openssl is not installed (apt-get install openssl)") from error
    if done.returncode != 0:
        raise OpensslError(f"openssl: {done.stderr.strip()}")
    return done.stdout
