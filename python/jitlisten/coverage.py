"""Plugin for coverage.py that measures code compiled by Numba.

    [run]
    plugins = jitlisten.coverage

It measures the same lines and branches that coverage.py measures without Numba. The commands stay the same.
"""

from __future__ import annotations

import os
from typing import Any

from coverage import CoveragePlugin

__all__ = ["coverage_init"]

_PACKAGE_FILES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "*")


class _Plugin(CoveragePlugin):  # type: ignore[misc]
    def configure(self, config: Any) -> None:
        """Excludes this package from the measurement."""
        config.set_option("run:omit", list(config.get_option("run:omit") or []) + [_PACKAGE_FILES])


def coverage_init(registry: Any, options: Any) -> None:
    """Installs the plugin; called by coverage.py before it starts to measure."""
    from ._coverage import collect

    registry.add_configurer(_Plugin())
    collect.install()
