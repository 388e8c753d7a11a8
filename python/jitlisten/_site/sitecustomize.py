# mypy: ignore-errors
# No annotations: any Python may come by here, also one of version 2, and must see nothing that it does not understand.
"""Runs at the start of a Python below ``jitlisten run``: switches line tables for Numba on, or coverage below
``jitlisten coverage``, takes itself out of the way, and calls the ``sitecustomize`` that would have run otherwise. Says
nothing, whatever happens.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _take_away():
    """Removes this directory from the path; returns what ``jitlisten run`` has said."""
    sys.path[:] = [place for place in sys.path if place != _HERE]
    sys.path_importer_cache.pop(_HERE, None)
    said = os.environ.get("JITLISTEN_RUN", "")
    if said.split(":")[0].split("+")[0] != "children" and not os.environ.get("JITLISTEN_COVERAGE"):
        # capi/src/give_back.rs has given the rest back.
        places = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        left = [place for place in places if place != _HERE]
        if len(left) != len(places):
            if left:
                os.environ["PYTHONPATH"] = os.pathsep.join(left)
            else:
                del os.environ["PYTHONPATH"]
        os.environ.pop("JITLISTEN_RUN", None)
    return said


def _load(name, places):
    """The module of that name that is found there, executed; None if there is none."""
    # `importlib.machinery` imports modules that the program may have one of its own instead of.
    from _frozen_importlib_external import PathFinder

    spec = PathFinder.find_spec(name, places)
    if spec is None or spec.loader is None:
        return None
    module = type(sys)(name)
    module.__spec__ = spec
    module.__loader__ = spec.loader
    module.__file__ = spec.origin
    module.__package__ = spec.parent
    if spec.submodule_search_locations is not None:
        module.__path__ = spec.submodule_search_locations
    before = sys.modules.get(name)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
        raise
    return module


class _UntilNumba(object):
    """A finder that switches lines on when Numba is looked for. Until then nothing is imported: a script's own `json.py`
    or `types.py` comes before those of the standard library only if nobody has imported these."""

    #: `jitlisten._lines` looks for it.
    starts_jitlisten_lines = True

    def __init__(self):
        self.is_recorded = os.environ.get("JITLISTEN_RECORD_BEGUN") == str(os.getpid())

    def find_spec(self, name, path=None, target=None):
        if name != "numba":
            return None
        try:
            sys.meta_path.remove(self)
        except ValueError:  # another thread was faster
            return None
        self.start()
        # The finders that wait for Numba's modules come first now.
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                return spec
        return None

    def start(self):
        try:
            # This Python may be another than the one jitlisten is installed in.
            if "jitlisten" not in sys.modules:
                _load("jitlisten", [os.path.dirname(os.path.dirname(_HERE))])
            from jitlisten import _compilations as compilations
            from jitlisten import _lines as lines

            lines.install()
            if self.is_recorded:
                compilations.begin()
        except Exception:
            pass


def _lines(said):
    words = said.split(":")[0].split("+")
    if sys.version_info < (3, 8) or "lines" not in words:
        return
    # After a Python that was started with -I or -E, its children get here without the library.
    if words == ["lines"] and said != "lines:%d" % os.getpid():
        return
    if "numba" in sys.modules:
        _UntilNumba().start()
    else:
        sys.meta_path.insert(0, _UntilNumba())


def _coverage():
    if sys.version_info < (3, 8) or not os.environ.get("JITLISTEN_COVERAGE"):
        return
    try:
        if "jitlisten" not in sys.modules:
            _load("jitlisten", [os.path.dirname(os.path.dirname(_HERE))])
        from jitlisten import _coverage as coverage

        coverage.install_everywhere()
    except Exception:
        pass


_lines(_take_away())
_coverage()
if sys.version_info >= (3, 4) and _load("sitecustomize", sys.path) is None:
    # As without this file; `site` ignores it.
    raise ImportError("No module named 'sitecustomize'", name="sitecustomize")
