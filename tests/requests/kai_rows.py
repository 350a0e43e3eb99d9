"""Rows of KAI's dialect in the order of KAI's checks, with error texts that KAI's users search for.

A pod with several errors is refused for the first of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tests.requests.pods import Json, asking, container, of_kai, pod
from tests.requests.row import Row, annotated

POLICY: Final = "gpuslice-kai"
MEMORY: Final = "nvidia.com/container.{}.gpu-memory.{}"
LIMIT: Final = MEMORY.format("main", "limit")
REQUEST: Final = MEMORY.format("main", "request")
MODE: Final = "nvidia.com/container.main.gpu-compute.mode"
HALF: Final = {"gpu-fraction": "0.5"}
OLD_TYPE: Final = {**HALF, "gpu-fraction-container-type": "InitContainer"}

_2000: Final = {"gpu-memory": "2000"}
_0_DEVICES: Final = {"gpu-fraction-num-devices": "0"}
_NUMBER: Final = "gpu-fraction annotation value must be a positive number smaller than 1.0"
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
_NAME: Final = "gpu-fraction-container-name"
_FRACTIONS: Final = """
    1 1.0 0 -0.5 2e0 1e99 1e999 Inf -inf half 50% 500m 0.5Gi 0_.5 0x1p2 -0x1p-2 . 0,5
    0.99999999999999999999 0.333333333333333333333333333333333333333333333333333333333333333
    """
_DIGITS: Final = "12345678901234567890e9999999"


def _refused(says: str, annotations: Mapping[str, str], *containers: Json, whole: str = "") -> Row:
    return Row(of_kai(annotations, *containers, whole=whole), says, POLICY)


def _values(key: str, says: str, texts: Sequence[str], **beside: str) -> list[Row]:
    """Return a refused row for each value of the annotation. says: the text, {} for the value."""
    return [_refused(says.format(text), {**beside, key: text}) for text in texts]


NOTHING: Final = [
    _refused(_MPS, {"mps": "true"}),
    _refused(_MPS, {"mps": "true", "gpu-fraction-num-devices": "2"}),
    _refused(_ALONE, {"gpu-fraction-num-devices": "2"}),
    _refused(_ALONE, _0_DEVICES, whole="main"),
]
"""Pods that request no share. They are refused, but accepted while the dialect is off."""
UNKNOWN: Final = [
    _refused(f"invalid NvFractions annotation key: {key}", {key: "1Gi"})
    for key in (
        "nvidia.com/container.main.gpu-memory",
        "nvidia.com/container.main.gpu-memory.limits",
        "nvidia.com/container.gpu-memory.limit",
        "nvidia.com/container.main.gpus.devices",
        "nvidia.com/container.main.gpu-compute",
        "nvidia.com/container.gpu-compute.mode",
    )
]
REFUSED: Final = [
    Row(pod(annotations={"gpu-fraction": "all"}), _NUMBER, POLICY),
    *(_refused(_WHOLE, HALF, whole=name) for name in ("main", "second", "first")),
    _refused(_WHOLE, HALF, asking({"nvidia.com/gpu": 0})),
    _refused(_WHOLE, {"gpu-fraction": "2", "gpu-memory": "x"}, whole="main"),
    _refused(_BOTH, {"gpu-fraction": "2", **_2000}),
    _refused(_BOTH, _2000, whole="main"),
    *(
        row
        for beside in (HALF, {LIMIT: "1Gi"}, {"gpu-memory": "0"})
        for row in _values(
            MODE,
            annotated(MODE, "{}", "time-slicing, because gpuslice shares compute without MPS"),
            ("sm-sharing", "", "Time-Slicing"),
            **beside,
        )
    ),
    *_values(
        "gpu-memory",
        "gpu-memory annotation value must be a positive integer greater than 0",
        ("4Gi", "-1", "1.5", "0", "000", "", "+1", "1_000", "0x10", "1e3", " 1", "one"),
        **_0_DEVICES,
    ),
    *_values(
        "gpu-memory",
        annotated("gpu-memory", "{}", "128 to 268435456 MiB, a number without a unit"),
        ("4", "127", "268435457", "1000000000", "18446744073709551616"),
    ),
    *_values("gpu-fraction", _NUMBER, (*_FRACTIONS.split(), "", " 0.5", "0.5 ")),
    *_values(
        "gpu-fraction",
        "gpu-fraction annotation value must be a float written with a decimal point or a scientific"
        " notation .given value: {}",
        ("NaN", "nan", "0x1p-2", "0X.8p0", "0.5_0", "0x_1p-2"),
    ),
    *_values("gpu-fraction", _NUMBER, ("1",), **_0_DEVICES),
    *_values(
        "gpu-fraction",
        annotated("gpu-fraction", "{}", "at least 0.000001"),
        ("0.0000001", "9.9e-7", "1e-99"),
    ),
    *_values(
        "gpu-fraction-num-devices",
        "fraction count annotation value must be a positive integer greater than 0",
        ("0", "-1", "1.2", "", "two"),
        **HALF,
    ),
    *_values(
        "gpu-fraction-num-devices",
        annotated("gpu-fraction-num-devices", "{}", "1 to 16"),
        ("17", "100", "18446744073709551616"),
        **_2000,
    ),
    *(
        _refused(
            f"container with name {name} not found for fraction request", {**more, _NAME: name}
        )
        for more, name in ((HALF, "other"), (_2000, ""), (OLD_TYPE, "main"))
    ),
    Row(
        of_kai(OLD_TYPE, container()),
        annotated(
            "gpu-fraction-container-type",
            "InitContainer",
            "absent in a pod without init containers",
        ),
        POLICY,
    ),
    _refused(_COMBINED, {LIMIT: "1Gi", **HALF}),
    _refused(_COMBINED, {REQUEST: "1Gi", "gpu-memory": "1024"}),
    _refused(_WHOLE, {LIMIT: "1Gi"}, whole="second"),
    *_values(
        LIMIT,
        f"{LIMIT} annotation value must be a valid Kubernetes memory quantity greater than 0",
        ("0", "0Mi", "-1Gi", "NaN", "much", "", "9Ei", "1e999", "1e9999999", _DIGITS),
    ),
    *_values(LIMIT, annotated(LIMIT, "{}", "128Mi to 256Ti"), ("1", "131071Ki", "257Ti", "500m")),
    _refused(
        "currently, kai doesn't support multiple containers with fractional GPU requests",
        {LIMIT: "1Gi", MEMORY.format("second", "limit"): "1Gi"},
    ),
    _refused(
        "container other not found in pod spec, but a fractional annotation referencing it was"
        " found",
        {MEMORY.format("other", "limit"): "1Gi"},
    ),
    _refused(
        f"{_NAME} annotation value second does not match container name main",
        {LIMIT: "1Gi", _NAME: "second"},
    ),
    _refused(
        "invalid fraction request for container main: request is greater than limit",
        {REQUEST: "2Gi", LIMIT: "1Gi"},
    ),
    _refused(
        annotated(LIMIT, "2Gi", "equal to the request, or without one"),
        {REQUEST: "1Gi", LIMIT: "2Gi"},
    ),
]


def _of(key: str, texts: str, says: str) -> list[Row]:
    """Return a row for each value of the annotation. texts: the values, separated by blanks."""
    return [Row(of_kai({key: text}), f"main: {says}") for text in texts.split()]


GRANTED: Final = [
    *_of("gpu-fraction", "0.5 .5 +0.5 5e-1 0.05E+1 00.50 5e-01", "1/2"),
    *_of("gpu-fraction", "0.1", "1/10"),
    *_of("gpu-fraction", "29e-2", "29/100"),
    *_of("gpu-fraction", "0.57", "57/100"),  # as a float 0.57 of 40000 is 22799.999999999996
    *_of("gpu-fraction", "0.000001", "1/1000000"),
    *_of("gpu-fraction", f"0.{62 * '3'}", f"{62 * '3'}/1{62 * '0'}"),
    *_of("gpu-memory", "128", "128 MiB"),
    *_of("gpu-memory", "00200", "200 MiB"),
    *_of("gpu-memory", "268435456", "268435456 MiB"),
    *(
        Row(of_kai(annotations), says)
        for annotations, says in (
            ({"gpu-memory": "200", "gpu-fraction-num-devices": "016"}, "main: 16 x 200 MiB"),
            ({"gpu-fraction": ".25", "gpu-fraction-num-devices": "3"}, "main: 3 x 1/4"),
            ({**HALF, _NAME: "second"}, "second (main 1): 1/2"),
            ({**HALF, _NAME: "first"}, "first (init 0): 1/2"),
            (OLD_TYPE, "first (init 0): 1/2"),
            (
                {**OLD_TYPE, "gpu-fraction-container-type": "RegularContainer", _NAME: "first"},
                "first (init 0): 1/2",
            ),
            ({**OLD_TYPE, "gpu-fraction-container-type": "RegularContainer"}, "main: 1/2"),
            ({**HALF, "mps": "true"}, "main: 1/2"),
            ({"mps": "false"}, ""),
            ({_NAME: ""}, ""),
            ({LIMIT: "1500M"}, "main: 1500000000 B"),
            ({LIMIT: "1Gi", MODE: "time-slicing"}, "main: 1024 MiB"),
            ({**HALF, MODE: "time-slicing"}, "main: 1/2"),
            ({MODE: "time-slicing"}, ""),
            ({REQUEST: "128Mi", "gpu-fraction-num-devices": "2"}, "main: 2 x 128 MiB"),
            ({REQUEST: "1Gi", LIMIT: "1024Mi", _NAME: "main"}, "main: 1024 MiB"),
        )
    ),
]
