"""A stand-in of `airflow.sdk`, as much of it as the DAG files use: it notes what was declared and runs nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


class Task:
    """One declared task: its function, its options, and what it was mapped over."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self.function = function
        self.options = options
        self.mapped: dict[str, Any] | None = None

    def __call__(self) -> tuple[str, str]:
        return "output of", self.function.__name__

    def expand(self, **mapped: Any) -> Task:
        self.mapped = mapped
        return self


class Sdk(ModuleType):
    """`dags` are the options of each DAG, `made` the tasks by name."""

    def __init__(self) -> None:
        super().__init__("airflow.sdk")
        self.dags: list[dict[str, Any]] = []
        self.made: dict[str, Task] = {}
        self.task = Decorator(self)

    def dag(self, **options: Any) -> Callable[[Callable[[], None]], Callable[[], None]]:
        self.dags.append(options)
        return lambda function: function


class Decorator:
    def __init__(self, sdk: Sdk) -> None:
        self._sdk = sdk

    def __call__(self, function: Callable[..., Any]) -> Task:
        return self.bash()(function)

    def bash(self, **options: Any) -> Callable[[Callable[..., Any]], Task]:
        def keep(function: Callable[..., Any]) -> Task:
            task = self._sdk.made[function.__name__] = Task(function, options)
            return task

        return keep


def install() -> Sdk:
    """Put it where the real one would be imported from."""
    sdk = Sdk()
    sys.modules["airflow"], sys.modules["airflow.sdk"] = ModuleType("airflow"), sdk
    return sdk
