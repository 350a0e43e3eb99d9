"""Problems of a running cluster, from its processes, their status pages, and Kubernetes.

The input is the state that the cluster's owner has written (owner.py). This module changes nothing.
"""

from __future__ import annotations

import http.client
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lab import pages
from lab.node import network


def problems(state: Mapping[str, Any]) -> Iterator[str]:
    """Yield the problems that the owner's table of parts and the cluster itself show."""
    for name, part in state["parts"].items():
        pid = part["pid"]
        if pid is None or not Path(f"/proc/{pid}").exists():
            yield f"{name} is not running"
        elif name in state["pages"]:
            try:
                status, text = pages.get(state["pages"][name], "/readyz", 5.0)
            except (OSError, http.client.HTTPException) as error:
                status, text = 0, str(error)
            if status != 200:
                yield f"{name} is not ready: {text.strip()}"
    path = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
    command = [
        *(state["kubectl"], f"--kubeconfig={state['kubeconfig']}", "--request-timeout=10s"),
        f"--cache-dir={state['directory']}/kubectl",  # kubectl's default is in the user's home
        *("get", "node", state["node"], "-o", path),
    ]
    try:
        done = subprocess.run(
            command, env=network.unproxied(os.environ), text=True, capture_output=True, timeout=15.0
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        yield f"kubectl: {error}"
        return
    if done.returncode != 0:
        yield f"the API server does not answer: {done.stderr.strip()}"
    elif done.stdout != "True":
        yield "the node is not Ready"
