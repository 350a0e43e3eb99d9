"""Creates KAI's object kai-config, once the API server serves the definition that Helm just made.

Argument: the object, as JSON. The script needs only the standard library, and acts as the pod's
service account. An existing object stays unchanged. Helm cannot create the object itself, because
it reads the cluster's kinds before it installs any.
"""

import os
import ssl
import sys
import time
import urllib.error
import urllib.request

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
DEADLINE_S = 60
PATH = "/apis/kai.scheduler/v1/configs"


def create(body: str) -> int:
    """POST the object, and return the status of the answer."""
    server = os.environ.get("KUBERNETES_SERVICE_HOST", "kubernetes.default.svc")
    server = f"[{server}]" if ":" in server else server
    with open(f"{ACCOUNT}/token") as file:
        headers = {"Authorization": f"Bearer {file.read()}", "Content-Type": "application/json"}
    url = f"https://{server}:{os.environ.get('KUBERNETES_SERVICE_PORT', '443')}{PATH}"
    context = ssl.create_default_context(cafile=f"{ACCOUNT}/ca.crt")
    request = urllib.request.Request(url, body.encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=10, context=context) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def main() -> int | str:
    until_s = time.monotonic() + DEADLINE_S
    while (status := create(sys.argv[1])) == 404 and time.monotonic() < until_s:
        time.sleep(0.5)
    return 0 if status in (201, 409) else f"POST {PATH}: status {status}: must be 201 or 409"


if __name__ == "__main__":
    sys.exit(main())
