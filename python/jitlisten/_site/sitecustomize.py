# mypy: ignore-errors
# No annotations: any Python may execute this file, even version 2, and must be able to parse it.
"""Start-up hook of Python processes under ``jitlisten run`` and ``jitlisten coverage``. It enables line tables for
Numba, or coverage, removes itself from the path, and calls the ``sitecustomize`` that would have run otherwise. It
never prints anything.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _remove_from_path():
    """Removes this directory from the path; returns the settings from ``jitlisten run``."""
    sys.path[:] = [directory for directory in sys.path if directory != _HERE]
    sys.path_importer_cache.pop(_HERE, None)
    settings = os.environ.get("JITLISTEN_RUN", "")
    if settings.split(":")[0].split("+")[0] != "children" and not os.environ.get("JITLISTEN_COVERAGE"):
        # capi/src/run_environment.rs has restored the other variables.
        directories = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        remaining = [directory for directory in directories if directory != _HERE]
        if len(remaining) != len(directories):
            if remaining:
                os.environ["PYTHONPATH"] = os.pathsep.join(remaining)
            else:
                del os.environ["PYTHONPATH"]
        os.environ.pop("JITLISTEN_RUN", None)
    return settings


def _load(name, directories):
    """Loads and executes the module ``name`` from ``directories``; returns None if it does not exist."""
    # Importing `importlib.machinery` would import modules that the program may have its own versions of.
    from _frozen_importlib_external import PathFinder

    spec = PathFinder.find_spec(name, directories)
    if spec is None or spec.loader is None:
        return None
    module = type(sys)(name)
    module.__spec__ = spec
    module.__loader__ = spec.loader
    module.__file__ = spec.origin
    module.__package__ = spec.parent
    if spec.submodule_search_locations is not None:
        module.__path__ = spec.submodule_search_locations
    previous_module = sys.modules.get(name)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if previous_module is None:
            del sys.modules[name]
        else:
            sys.modules[name] = previous_module
        raise
    return module


class _NumbaFinder(object):
    """Finder that enables line tables when Numba is imported. Until then it imports nothing: a script's own `json.py`
    or `types.py` shadows that of the standard library only if it is imported first.

    It stays in `sys.meta_path`, for the reason given in `_numba/imports.py`."""

    def __init__(self):
        #: `jitlisten._lines` recognises the finder by this attribute, and may clear it.
        self.starts_jitlisten_lines = True
        self.is_recorded = os.environ.get("JITLISTEN_RECORD_BEGUN") == str(os.getpid())

    def find_spec(self, name, path=None, target=None):
        if name != "numba" or not self.starts_jitlisten_lines:
            return None
        self.starts_jitlisten_lines = False
        self.start()
        # Finders that wait for Numba's modules are first in the list now.
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                return spec
        return None

    def start(self):
        try:
            # This Python may not be the one that jitlisten is installed in.
            if "jitlisten" not in sys.modules:
                _load("jitlisten", [os.path.dirname(os.path.dirname(_HERE))])
            from jitlisten import _lines as lines

            lines.install()
            if self.is_recorded:
                from jitlisten import _compilations as compilations
                from jitlisten import _names as names
                from jitlisten import _owners as owners

                compilations.begin()
                names.begin()
                owners.begin()
        except Exception:
            pass


def _enable_lines(settings):
    features = settings.split(":")[0].split("+")
    if sys.version_info < (3, 8) or "lines" not in features:
        return
    # Child processes of a Python interpreter started with -I or -E run this file without the library.
    if features == ["lines"] and settings != "lines:%d" % os.getpid():
        return
    if "numba" in sys.modules:
        _NumbaFinder().start()
    else:
        sys.meta_path.insert(0, _NumbaFinder())


def _enable_coverage():
    if sys.version_info < (3, 8) or not os.environ.get("JITLISTEN_COVERAGE"):
        return
    try:
        if "jitlisten" not in sys.modules:
            _load("jitlisten", [os.path.dirname(os.path.dirname(_HERE))])
        from jitlisten import _coverage as coverage

        coverage.install_everywhere()
    except Exception:
        pass


_enable_lines(_remove_from_path())
_enable_coverage()
if sys.version_info >= (3, 4) and _load("sitecustomize", sys.path) is None:
    # Same result as without this file; `site` ignores the exception.
    raise ImportError("No module named 'sitecustomize'", name="sitecustomize")
