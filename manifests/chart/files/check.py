"""`helm test`: checks that each component runs, is ready, and has the chart's version.

Arguments: the chart's version, then the components. With `queues` it warns if Kueue's webhooks are
called in namespaces without our label. The script needs only the standard library. It reads the API
server as the pod's service account, and /readyz of the scheduler's pods.
"""

import json
import os
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
NAMESPACE = "gpuslice-system"
RESOURCE = "koordinator.sh/gpu"
SLICES = "/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.driver=gpuslice.io"
LABEL = "gpuslice.io/queues"


def read(path: str) -> Any:
    server = os.environ.get("KUBERNETES_SERVICE_HOST", "kubernetes.default.svc")
    server = f"[{server}]" if ":" in server else server
    with open(f"{ACCOUNT}/token") as file:
        headers = {"Authorization": f"Bearer {file.read()}"}
    url = f"https://{server}:{os.environ.get('KUBERNETES_SERVICE_PORT', '443')}{path}"
    context = ssl.create_default_context(cafile=f"{ACCOUNT}/ca.crt")
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=10, context=context) as answer:
        return json.load(answer)


def is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def check_pods(component: str, version: str) -> Iterator[str]:
    selector = f"labelSelector=app.kubernetes.io/name={component}"
    pods = read(f"/api/v1/namespaces/{NAMESPACE}/pods?{selector}")["items"]
    if not pods:
        yield f"{component}: no pods; no node has a label of its affinity and nodeSelector"
    for pod in pods:
        name = pod["metadata"]["name"]
        if not is_ready(pod):
            yield f"pod {name}: not ready; see kubectl --namespace {NAMESPACE} describe pod {name}"
        found = pod["metadata"]["labels"].get("app.kubernetes.io/version")
        if found != version:
            yield f"pod {name}: invalid version {found}: must be {version}; wait for the rollout"
        if component == "gpuslice-scheduler":
            yield from check_scheduler(name, pod.get("status", {}).get("podIP", ""))


def check_scheduler(name: str, address: str) -> Iterator[str]:
    host = f"[{address}]" if ":" in address else address
    try:
        with urllib.request.urlopen(f"http://{host}:9445/readyz", timeout=10):
            return
    except urllib.error.HTTPError as error:
        yield f"pod {name}: {error.read().decode(errors='replace').strip()}"
    except OSError as error:
        yield f"pod {name}: {error}"


def check_nodes(by_claims: bool) -> Iterator[str]:
    slices = read(SLICES)["items"] if by_claims else ()
    if any(not gpu.get("taints") for each in slices for gpu in each["spec"].get("devices", ())):
        return
    nodes = read("/api/v1/nodes")["items"]
    offered = [node.get("status", {}).get("allocatable", {}).get(RESOURCE, "0") for node in nodes]
    if all(amount == "0" for amount in offered):
        yield f"nodes: none of {len(nodes)} offers {RESOURCE}; run the doctor on a node with a GPU"


def check_kueue() -> Iterator[str]:
    for kind in ("mutating", "validating"):
        path = f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations"
        for each in read(path)["items"]:
            name = each["metadata"]["name"]
            reaching = [hook["name"] for hook in each.get("webhooks", ()) if reaches_all(hook)]
            if "kueue" in name and reaching:
                yield (
                    f"warning: {kind}webhookconfiguration {name}: {', '.join(reaching)}: no"
                    f" namespaceSelector with {LABEL}: while Kueue is down, the API server refuses"
                    " pods and workloads in every namespace; set Kueue's value"
                    " managedJobsNamespaceSelector (docs/queues.md)"
                )


def reaches_all(hook: dict[str, Any]) -> bool:
    """Return whether pods or workloads need this webhook in namespaces without the label."""
    groups = {group for rule in hook.get("rules", ()) for group in rule.get("apiGroups", ())}
    is_needed = hook["failurePolicy"] == "Fail" and groups & {"", "apps", "batch", "*"}
    return bool(is_needed) and LABEL not in json.dumps(hook["namespaceSelector"])


def main(version: str, *components: str) -> int:
    ours = [each for each in components if each not in ("queues", "claims")]
    problems = [line for each in ours for line in check_pods(each, version)]
    if "gpuslice-agent" in components:
        problems += check_nodes("claims" in components)
    warnings = check_kueue() if "queues" in components else ()
    sys.stdout.write("\n".join([*problems, *warnings, "failed" if problems else "ok"]) + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
