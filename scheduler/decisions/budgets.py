"""PodDisruptionBudgets, counted like kube-scheduler: a victim violates a budget if more pods are
evicted than it allows. Victims are preferred that violate none, but violations are possible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from scheduler.kubernetes.facts import BudgetFacts, PodFacts


class Budgets:
    def __init__(self) -> None:
        self._in_namespace: dict[str, dict[str, BudgetFacts]] = {}

    def observe(self, budget: BudgetFacts) -> None:
        namespace = budget.name.partition("/")[0]
        self._in_namespace.setdefault(namespace, {})[budget.name] = budget

    def remove(self, name: str) -> None:
        self._in_namespace.get(name.partition("/")[0], {}).pop(name, None)

    def violating(self, victims: Iterable[PodFacts]) -> AbstractSet[str]:
        """Return the UIDs of the victims that violate a budget. Victims that are listed first use
        up the allowed evictions."""
        used, violating = Counter[str](), set()
        for pod in victims:
            for name, budget in self._in_namespace.get(pod.namespace, {}).items():
                if budget.covers(pod):
                    used[name] += 1
                    if used[name] > budget.allowed:
                        violating.add(pod.uid)
        return violating
