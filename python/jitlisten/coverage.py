"""The plugin of coverage.py that measures the code Numba compiles.

    [run]
    plugins = jitlisten.coverage

It measures the same lines and branches as coverage.py does without Numba, and nothing else about the command changes.
"""

from __future__ import annotations

import os
from typing import Any

from coverage import CoveragePlugin

__all__ = ["coverage_init"]

_OWN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "*")


class _Plugin(CoveragePlugin):  # type: ignore[misc]
    def configure(self, config: Any) -> None:
        """What runs to measure is not measured itself."""
        config.set_option("run:omit", list(config.get_option("run:omit") or []) + [_OWN])


def coverage_init(registry: Any, options: Any) -> None:
    """Called by coverage.py, before it begins to measure."""
    from ._coverage import collect

    registry.add_configurer(_Plugin())
    collect.install()
