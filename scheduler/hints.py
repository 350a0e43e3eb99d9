"""Koordinator's hints on which cards will do: annotations, as the core's selector and scope.

Pure. What is not honoured is refused by its name: a hint that is silently dropped is a promise
broken. Source: koordinator apis/extension/device_share.go.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from contract import names
from scheduler.core.request import Ask, Requirement, Scope
from scheduler.dialects import RequestError

_SCOPES: Final = {
    "Device": Scope.DEVICE,
    "PCIe": Scope.PCIE,
    "NUMANode": Scope.NUMA_NODE,
    "Node": Scope.NODE,
}
_HONOURED: Final = frozenset({"selector", "requiredTopologyScope"})
_OPERATORS: Final = {"In": False, "NotIn": True, "Exists": False, "DoesNotExist": True}
_NOT_HONOURED: Final = (names.ANNOTATION_JOINT_ALLOCATE, names.ANNOTATION_PARTITION_SPEC)


def read_hints(
    annotations: Mapping[str, str], asks: Sequence[Ask]
) -> tuple[Sequence[Requirement], Scope]:
    """The selector and the scope that the pod's cards must be in. Raises RequestError."""
    for key in _NOT_HONOURED:
        if key in annotations:
            raise RequestError(
                f"annotation {key} is not honoured; allowed is {names.ANNOTATION_ALLOCATE_HINT}"
            )
    text = annotations.get(names.ANNOTATION_ALLOCATE_HINT)
    if text is None:
        return (), Scope.NODE
    where = f"annotation {names.ANNOTATION_ALLOCATE_HINT}"
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{where}: not JSON: {error}") from error
    hints = _object(where, document)
    _only(where, hints, frozenset({names.DEVICE_TYPE_GPU}))
    where = f"{where}: {names.DEVICE_TYPE_GPU}"
    hint = _object(where, hints.get(names.DEVICE_TYPE_GPU))
    _only(where, hint, _HONOURED)
    return _selector(f"{where}.selector", hint.get("selector")), _scope(where, hint, asks)


def _scope(where: str, hint: Mapping[str, Any], asks: Sequence[Ask]) -> Scope:
    text = hint.get("requiredTopologyScope")
    if text in (None, ""):
        return Scope.NODE
    scope = _SCOPES.get(text) if isinstance(text, str) else None
    where = f"{where}.requiredTopologyScope: {text!r}"
    if scope is None:
        raise RequestError(f"{where}; allowed are {', '.join(_SCOPES)}")
    if scope is Scope.DEVICE and any(ask.cards > 1 for ask in asks):
        raise RequestError(
            f"{where}, and several cards are asked; allowed are PCIe, NUMANode, Node"
        )
    return scope


def _selector(where: str, raw: object) -> Sequence[Requirement]:
    selector = _object(where, raw)
    _only(where, selector, frozenset({"matchLabels", "matchExpressions"}))
    lines = []
    for key, value in _object(f"{where}.matchLabels", selector.get("matchLabels")).items():
        if not isinstance(value, str):
            raise RequestError(f"{where}.matchLabels.{key}: {value!r}; allowed is a string")
        lines.append(Requirement(key, frozenset({value})))
    expressions = selector.get("matchExpressions") or []
    if not isinstance(expressions, list):
        raise RequestError(f"{where}.matchExpressions: expected a list")
    for index, expression in enumerate(expressions):
        lines.append(_expression(f"{where}.matchExpressions[{index}]", expression))
    return tuple(lines)


def _expression(where: str, raw: object) -> Requirement:
    expression = _object(where, raw)
    _only(where, expression, frozenset({"key", "operator", "values"}))
    key, operator = expression.get("key"), expression.get("operator")
    values = expression.get("values") or []
    if not isinstance(key, str) or not key:
        raise RequestError(f"{where}.key: {key!r}; allowed is a label's key")
    if not isinstance(operator, str) or operator not in _OPERATORS:
        raise RequestError(f"{where}.operator: {operator!r}; allowed are {', '.join(_OPERATORS)}")
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise RequestError(f"{where}.values: {values!r}; allowed is a list of strings")
    wants_values = operator in ("In", "NotIn")
    if wants_values != bool(values):
        allowed = "at least one" if wants_values else "none"
        raise RequestError(f"{where}.values: {len(values)} with {operator}; allowed is {allowed}")
    return Requirement(key, frozenset(values) if wants_values else None, _OPERATORS[operator])


def _object(where: str, raw: object) -> Mapping[str, Any]:
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise RequestError(f"{where}: expected an object, got {type(raw).__name__}")
    return raw


def _only(where: str, found: Mapping[str, object], honoured: frozenset[str]) -> None:
    """What is empty asks for nothing, and is let through."""
    for key in sorted(found.keys() - honoured):
        if found[key]:
            allowed = ", ".join(sorted(honoured))
            raise RequestError(f"{where}: {key} is not honoured; allowed are {allowed}")
