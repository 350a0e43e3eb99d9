"""Pods in KAI's dialect: the refused ones, with the text that KAI's users search for."""

from __future__ import annotations

from typing import Any, Final

from gpuslice.contract.dialects import KAI
from scheduler.core.request import Phase
from scheduler.dialects.reading import Container, PodFields

Json = dict[str, Any]

MEMORY: Final = "nvidia.com/container.{}.gpu-memory.{}"
LIMIT: Final = MEMORY.format("main", "limit")
REQUEST: Final = MEMORY.format("main", "request")

_INTEGER: Final = "gpu-memory annotation value must be a positive integer greater than 0"
_NUMBER: Final = "gpu-fraction annotation value must be a positive number smaller than 1.0"
_NOTATION: Final = (
    "gpu-fraction annotation value must be a float written with a decimal point or a scientific"
    " notation .given value: "
)
_COUNT: Final = "fraction count annotation value must be a positive integer greater than 0"
_WHOLE: Final = "cannot have both GPU fraction request and whole GPU resource request/limit"
_BOTH: Final = "cannot request both GPU and GPU memory"
_ALONE: Final = (
    "cannot request multiple fractional devices without specifying fraction portion or gpu-memory"
)
_COMBINED: Final = (
    "cannot combine nvidia.com/container. limit annotation with gpu-fraction or gpu-memory"
    " annotation"
)
_MPS: Final = "MPS is only supported with GPU fraction request"


def pod(annotations: dict[str, str], whole: str = "", *, limit: object = 1) -> Json:
    """An init container `first`, and containers `main` and `second`. whole: the container with a
    limit of nvidia.com/gpu."""

    def made(name: str) -> Json:
        resources = {"limits": {"nvidia.com/gpu": limit}} if name == whole else {}
        return {"name": name, "image": "none", "resources": resources}

    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "annotations": annotations},
        "spec": {
            "schedulerName": KAI.scheduler_name,
            "initContainers": [made("first")],
            "containers": [made("main"), made("second")],
        },
    }


def fields(raw: Json) -> PodFields:
    containers = [
        Container(each["name"], phase, order, each["resources"].get("limits", {}), {})
        for phase, kind in ((Phase.INIT, "initContainers"), (Phase.MAIN, "containers"))
        for order, each in enumerate(raw["spec"].get(kind, []))
    ]
    scheduler = raw["spec"]["schedulerName"]
    return PodFields(scheduler, raw["metadata"]["annotations"], {}, {}, containers)


def _invalid(key: str, value: str, must: str) -> str:
    return f"metadata.annotations[{key}]: invalid value {value}: must be {must}"


def _fraction(text: str, refusal: str) -> tuple[Json, str]:
    return pod({"gpu-fraction": text}), refusal


def _without_init(annotations: dict[str, str]) -> Json:
    raw = pod(annotations)
    raw["spec"]["initContainers"] = []
    return raw


_OLD_TYPE: Final = {"gpu-fraction": "0.5", "gpu-fraction-container-type": "InitContainer"}

_DIGITS: Final = "12345678901234567890e9999999"

REFUSED: Final[dict[str, tuple[Json, str]]] = {
    # In the order of KAI's rows. A pod with several errors is refused by the first.
    "mps alone": (pod({"mps": "true"}), _MPS),
    "mps and a number of devices": (pod({"mps": "true", "gpu-fraction-num-devices": "2"}), _MPS),
    "a fraction and a whole GPU": (pod({"gpu-fraction": "0.5"}, "main"), _WHOLE),
    "the whole GPU of another container": (pod({"gpu-fraction": "0.5"}, "second"), _WHOLE),
    "the whole GPU of an init container": (pod({"gpu-fraction": "0.5"}, "first"), _WHOLE),
    "no whole GPU": (pod({"gpu-fraction": "0.5"}, "main", limit=0), _WHOLE),
    "both and a whole GPU": (pod({"gpu-fraction": "2", "gpu-memory": "x"}, "main"), _WHOLE),
    "memory and a fraction": (pod({"gpu-fraction": "2", "gpu-memory": "2000"}), _BOTH),
    "memory and a whole GPU": (pod({"gpu-memory": "2000"}, "main"), _BOTH),
    "a number of devices alone": (pod({"gpu-fraction-num-devices": "2"}), _ALONE),
    "a number of devices and whole GPUs": (pod({"gpu-fraction-num-devices": "0"}, "main"), _ALONE),
    **{
        f"memory {text!r}": (pod({"gpu-memory": text, "gpu-fraction-num-devices": "0"}), _INTEGER)
        for text in ("4Gi", "-1", "1.5", "0", "000", "", "+1", "1_000", "0x10", "1e3", " 1", "one")
    },
    **{
        f"memory {text}": (
            pod({"gpu-memory": text}),
            _invalid("gpu-memory", text, "at most 268435456 MiB"),
        )
        for text in ("268435457", "1000000000", "18446744073709551616")
    },
    **{
        f"fraction {text!r}": _fraction(text, _NUMBER)
        for text in ("1", "1.0", "0", "-0.5", "2e0", "1e99", "1e999", "Inf", "-inf", "half", "")
    },
    **{
        f"fraction {text!r}": _fraction(text, _NUMBER)
        for text in ("50%", "500m", "0.5Gi", " 0.5", "0.5 ", "0_.5", "0x1p2", "-0x1p-2", ".", "0,5")
    },
    "fraction of 65 digits": _fraction("0." + 63 * "3", _NUMBER),
    "fraction of nearly one": _fraction("0.99999999999999999999", _NUMBER),
    **{
        f"fraction {text!r}": _fraction(text, _NOTATION + text)
        for text in ("NaN", "nan", "0x1p-2", "0X.8p0", "0.5_0", "0x_1p-2")
    },
    "fraction and no number of devices": (
        pod({"gpu-fraction": "1", "gpu-fraction-num-devices": "0"}),
        _NUMBER,
    ),
    **{
        f"fraction {text}": _fraction(text, _invalid("gpu-fraction", text, "at least 0.000001"))
        for text in ("0.0000001", "9.9e-7", "1e-99")
    },
    **{
        f"{text!r} devices": (
            pod({"gpu-fraction": "0.5", "gpu-fraction-num-devices": text}),
            _COUNT,
        )
        for text in ("0", "-1", "1.2", "", "two")
    },
    **{
        f"{text} devices": (
            pod({"gpu-memory": "2000", "gpu-fraction-num-devices": text}),
            _invalid("gpu-fraction-num-devices", text, "1 to 16"),
        )
        for text in ("17", "100", "18446744073709551616")
    },
    # The container.
    "a container that there is not": (
        pod({"gpu-fraction": "0.5", "gpu-fraction-container-name": "other"}),
        "container with name other not found for fraction request",
    ),
    "a container without a name": (
        pod({"gpu-memory": "2000", "gpu-fraction-container-name": ""}),
        "container with name  not found for fraction request",
    ),
    "a main container as an init container": (
        pod({**_OLD_TYPE, "gpu-fraction-container-name": "main"}),
        "container with name main not found for fraction request",
    ),
    "no init container": (
        _without_init(_OLD_TYPE),
        _invalid(
            "gpu-fraction-container-type",
            "InitContainer",
            "absent in a pod without init containers",
        ),
    ),
    # By container.
    "a container's limit and a fraction": (pod({LIMIT: "1Gi", "gpu-fraction": "0.5"}), _COMBINED),
    "a container's limit and memory": (pod({REQUEST: "1Gi", "gpu-memory": "1024"}), _COMBINED),
    "a container's limit and a whole GPU": (pod({LIMIT: "1Gi"}, "second"), _WHOLE),
    **{
        f"the key {key}": (pod({key: "1Gi"}), f"invalid NvFractions annotation key: {key}")
        for key in (
            "nvidia.com/container.main.gpu-memory",
            "nvidia.com/container.main.gpu-memory.limits",
            "nvidia.com/container.gpu-memory.limit",
            "nvidia.com/container.main.gpus.devices",
        )
    },
    **{
        f"a container's limit of {text!r}": (
            pod({LIMIT: text}),
            f"{LIMIT} annotation value must be a valid Kubernetes memory quantity greater than 0",
        )
        for text in ("0", "0Mi", "-1Gi", "NaN", "much", "", "9Ei", "1e999", "1e9999999", _DIGITS)
    },
    **{
        f"a container's limit of {text}": (
            pod({LIMIT: text}),
            _invalid(LIMIT, text, "1Mi to 256Ti"),
        )
        for text in ("1", "1023Ki", "257Ti", "500m")
    },
    "two containers": (
        pod({LIMIT: "1Gi", MEMORY.format("second", "limit"): "1Gi"}),
        "currently, kai doesn't support multiple containers with fractional GPU requests",
    ),
    "the limit of a container that there is not": (
        pod({MEMORY.format("other", "limit"): "1Gi"}),
        "container other not found in pod spec, but a fractional annotation referencing it was"
        " found",
    ),
    "another name": (
        pod({LIMIT: "1Gi", "gpu-fraction-container-name": "second"}),
        "gpu-fraction-container-name annotation value second does not match container name main",
    ),
    "a request over the limit": (
        pod({REQUEST: "2Gi", LIMIT: "1Gi"}),
        "invalid fraction request for container main: request is greater than limit",
    ),
    "a request below the limit": (
        pod({REQUEST: "1Gi", LIMIT: "2Gi"}),
        _invalid(LIMIT, "2Gi", "equal to the request, or without one"),
    ),
}

ACCEPTED: Final[dict[str, Json]] = {
    **{
        f"fraction {text}": pod({"gpu-fraction": text})
        for text in ("0.5", "0.125", ".5", "+0.5", "5e-1", "0.05E+1", "0.000001", "00.50", "5e-01")
    },
    "a fraction of 64 digits": pod({"gpu-fraction": "0." + 62 * "3"}),
    **{f"memory {text}": pod({"gpu-memory": text}) for text in ("1", "2000", "002", "268435456")},
    "sixteen GPUs": pod({"gpu-memory": "2000", "gpu-fraction-num-devices": "016"}),
    "the init container": pod({"gpu-fraction": "0.5", "gpu-fraction-container-name": "first"}),
    "the second container": pod({"gpu-fraction": "0.5", "gpu-fraction-container-name": "second"}),
    "the first init container": pod(_OLD_TYPE),
    "the old type of a regular container": pod(
        {"gpu-fraction": "0.5", "gpu-fraction-container-type": "RegularContainer"}
    ),
    "with MPS": pod({"gpu-fraction": "0.5", "mps": "true"}),
    "without MPS": pod({"mps": "false"}),
    "whole GPUs": pod({}, "main"),
    "a container's limit": pod({LIMIT: "1500M"}),
    "a container's request": pod({REQUEST: "1Mi", "gpu-fraction-num-devices": "2"}),
    "a container's request and limit": pod(
        {REQUEST: "1Gi", LIMIT: "1024Mi", "gpu-fraction-container-name": "main", "mps": "true"}
    ),
}
