"""Rows of KAI's dialect, in the order of KAI's own checks, with the texts of its users' searches.

A pod with several errors is refused by the first.
"""

from __future__ import annotations

from typing import Final

from tests.requests.pods import Json, of_kai
from tests.requests.row import Row, annotated

POLICY: Final = "gpuslice-kai"
MEMORY: Final = "nvidia.com/container.{}.gpu-memory.{}"
LIMIT: Final = MEMORY.format("main", "limit")
REQUEST: Final = MEMORY.format("main", "request")
HALF: Final = {"gpu-fraction": "0.5"}
OLD_TYPE: Final = {**HALF, "gpu-fraction-container-type": "InitContainer"}

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
_QUANTITY: Final = f"{LIMIT} annotation value must be a valid Kubernetes memory quantity greater"
_MOST: Final = "at most 268435456 MiB"
_LEAST: Final = "at least 0.000001"
_FRACTIONS: Final = """
    1 1.0 0 -0.5 2e0 1e99 1e999 Inf -inf half 50% 500m 0.5Gi 0_.5 0x1p2 -0x1p-2 . 0,5
    0.99999999999999999999 0.333333333333333333333333333333333333333333333333333333333333333
    """
_DIGITS: Final = "12345678901234567890e9999999"


def _without_init() -> Json:
    raw = of_kai(OLD_TYPE)
    raw["spec"]["initContainers"] = []
    return raw


def _no_whole_gpu() -> Json:
    raw = of_kai(HALF, whole="main")
    raw["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/gpu": 0}
    return raw


def _refused(text: str, *pods: Json) -> list[Row]:
    return [Row(raw, text, POLICY) for raw in pods]


NOTHING: Final = [
    *_refused(_MPS, of_kai({"mps": "true"})),
    *_refused(_MPS, of_kai({"mps": "true", "gpu-fraction-num-devices": "2"})),
    *_refused(_ALONE, of_kai({"gpu-fraction-num-devices": "2"})),
    *_refused(_ALONE, of_kai({"gpu-fraction-num-devices": "0"}, whole="main")),
]
"""Refused, and accepted while the dialect is off: they request no share."""
UNKNOWN: Final = [
    Row(of_kai({key: "1Gi"}), f"invalid NvFractions annotation key: {key}", POLICY)
    for key in (
        "nvidia.com/container.main.gpu-memory",
        "nvidia.com/container.main.gpu-memory.limits",
        "nvidia.com/container.gpu-memory.limit",
        "nvidia.com/container.main.gpus.devices",
    )
]
REFUSED: Final = [
    *_refused(_WHOLE, *(of_kai(HALF, whole=name) for name in ("main", "second", "first"))),
    *_refused(_WHOLE, _no_whole_gpu()),
    *_refused(_WHOLE, of_kai({"gpu-fraction": "2", "gpu-memory": "x"}, whole="main")),
    *_refused(_BOTH, of_kai({"gpu-fraction": "2", "gpu-memory": "2000"})),
    *_refused(_BOTH, of_kai({"gpu-memory": "2000"}, whole="main")),
    *(
        Row(of_kai({"gpu-memory": text, "gpu-fraction-num-devices": "0"}), _INTEGER, POLICY)
        for text in ("4Gi", "-1", "1.5", "0", "000", "", "+1", "1_000", "0x10", "1e3", " 1", "one")
    ),
    *(
        Row(of_kai({"gpu-memory": text}), annotated("gpu-memory", text, _MOST), POLICY)
        for text in ("268435457", "1000000000", "18446744073709551616")
    ),
    *(
        Row(of_kai({"gpu-fraction": text}), _NUMBER, POLICY)
        for text in (*_FRACTIONS.split(), "", " 0.5", "0.5 ")
    ),
    *(
        Row(of_kai({"gpu-fraction": text}), _NOTATION + text, POLICY)
        for text in ("NaN", "nan", "0x1p-2", "0X.8p0", "0.5_0", "0x_1p-2")
    ),
    *_refused(_NUMBER, of_kai({"gpu-fraction": "1", "gpu-fraction-num-devices": "0"})),
    *(
        Row(of_kai({"gpu-fraction": text}), annotated("gpu-fraction", text, _LEAST), POLICY)
        for text in ("0.0000001", "9.9e-7", "1e-99")
    ),
    *(
        Row(of_kai({**HALF, "gpu-fraction-num-devices": text}), _COUNT, POLICY)
        for text in ("0", "-1", "1.2", "", "two")
    ),
    *(
        Row(
            of_kai({"gpu-memory": "2000", "gpu-fraction-num-devices": text}),
            annotated("gpu-fraction-num-devices", text, "1 to 16"),
            POLICY,
        )
        for text in ("17", "100", "18446744073709551616")
    ),
    *(
        Row(
            of_kai({**more, "gpu-fraction-container-name": name}),
            f"container with name {name} not found for fraction request",
            POLICY,
        )
        for more, name in ((HALF, "other"), ({"gpu-memory": "2000"}, ""), (OLD_TYPE, "main"))
    ),
    *_refused(
        annotated(
            *("gpu-fraction-container-type", "InitContainer"),
            "absent in a pod without init containers",
        ),
        _without_init(),
    ),
    *_refused(_COMBINED, of_kai({LIMIT: "1Gi", **HALF})),
    *_refused(_COMBINED, of_kai({REQUEST: "1Gi", "gpu-memory": "1024"})),
    *_refused(_WHOLE, of_kai({LIMIT: "1Gi"}, whole="second")),
    *(
        Row(of_kai({LIMIT: text}), f"{_QUANTITY} than 0", POLICY)
        for text in ("0", "0Mi", "-1Gi", "NaN", "much", "", "9Ei", "1e999", "1e9999999", _DIGITS)
    ),
    *(
        Row(of_kai({LIMIT: text}), annotated(LIMIT, text, "1Mi to 256Ti"), POLICY)
        for text in ("1", "1023Ki", "257Ti", "500m")
    ),
    *_refused(
        "currently, kai doesn't support multiple containers with fractional GPU requests",
        of_kai({LIMIT: "1Gi", MEMORY.format("second", "limit"): "1Gi"}),
    ),
    *_refused(
        "container other not found in pod spec, but a fractional annotation referencing it was"
        " found",
        of_kai({MEMORY.format("other", "limit"): "1Gi"}),
    ),
    *_refused(
        "gpu-fraction-container-name annotation value second does not match container name main",
        of_kai({LIMIT: "1Gi", "gpu-fraction-container-name": "second"}),
    ),
    *_refused(
        "invalid fraction request for container main: request is greater than limit",
        of_kai({REQUEST: "2Gi", LIMIT: "1Gi"}),
    ),
    *_refused(
        annotated(LIMIT, "2Gi", "equal to the request, or without one"),
        of_kai({REQUEST: "1Gi", LIMIT: "2Gi"}),
    ),
]

GRANTED: Final = [
    *(
        Row(of_kai({"gpu-fraction": text}), f"main: {ratio}")
        for texts, ratio in (
            ("0.5 .5 +0.5 5e-1 0.05E+1 00.50 5e-01", "1/2"),
            ("0.125", "1/8"),
            ("0.1", "1/10"),
            ("0.333", "333/1000"),
            ("29e-2", "29/100"),
            ("0.57", "57/100"),  # as a float, of 40000: 22799.999999999996
            ("0.000001", "1/1000000"),
            ("0." + 62 * "3", f"{int(62 * '3')}/1{62 * '0'}"),
        )
        for text in texts.split()
    ),
    *(
        Row(of_kai({"gpu-memory": text}), f"main: {int(text)} MiB")
        for text in ("1", "2000", "002", "268435456")
    ),
    Row(of_kai({"gpu-memory": "2", "gpu-fraction-num-devices": "016"}), "main: 16 x 2 MiB"),
    Row(of_kai({"gpu-fraction": ".25", "gpu-fraction-num-devices": "3"}), "main: 3 x 1/4"),
    *(
        Row(
            of_kai({**HALF, **{f"gpu-fraction-container-{key}": text for key, text in by.items()}}),
            says,
        )
        for by, says in (
            ({"name": "second"}, "second (main 1): 1/2"),
            ({"name": "first"}, "first (init 0): 1/2"),
            ({"type": "InitContainer"}, "first (init 0): 1/2"),
            ({"type": "InitContainer", "name": "first"}, "first (init 0): 1/2"),
            ({"type": "RegularContainer", "name": "first"}, "first (init 0): 1/2"),
            ({"type": "RegularContainer"}, "main: 1/2"),
        )
    ),
    Row(of_kai({**HALF, "mps": "true"}), "main: 1/2"),
    Row(of_kai({"mps": "false"}), ""),
    Row(of_kai({"gpu-fraction-container-name": ""}), ""),
    Row(of_kai({LIMIT: "1500M"}), "main: 1500000000 B"),
    Row(of_kai({REQUEST: "1Mi", "gpu-fraction-num-devices": "2"}), "main: 2 x 1 MiB"),
    Row(
        of_kai({REQUEST: "1Gi", LIMIT: "1024Mi", "gpu-fraction-container-name": "main"}),
        "main: 1024 MiB",
    ),
]
