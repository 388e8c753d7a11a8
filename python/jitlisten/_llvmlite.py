"""Frame pointers and unwind tables for code that llvmlite compiles in a process that started without us.

The library changes the addresses that ``dlsym`` returns for the functions of ``libllvmlite.so`` which hand a module to
an engine (shim/src/frame_pointers/llvmlite.rs). ctypes has looked them up by then, and keeps a function object for
each, whose first word is the address. That word is what is changed here: every holder of the object, llvmlite's
wrappers among them, calls through it.
"""

import ctypes
import sys
from typing import Any, Dict, Optional

_FUNCTIONS = ("LLVMPY_AddModule", "LLVMPY_CreateMCJITCompiler", "LLVMPY_LLJIT_Link")
#: Addresses before the first change. They stay here: several threads may switch at a time.
_originals: Dict[str, int] = {}


def _opened() -> Optional[ctypes.CDLL]:
    """llvmlite's library, if it was opened: an attribute of a wrapper, and not always under the same name."""
    ffi: Any = sys.modules.get("llvmlite.binding.ffi")
    wrapper = getattr(ffi, "lib", None)
    slots = getattr(type(wrapper), "__slots__", ())
    for name in ("_lib_handle", "_lib"):
        # A property would open it.
        try:
            found = object.__getattribute__(wrapper, name) if name in slots else None
        except AttributeError:
            continue
        if isinstance(found, ctypes.CDLL):
            return found
    return None


def _word(library: ctypes.CDLL, name: str) -> Optional["ctypes.c_void_p"]:
    """Where ctypes keeps the address, if it has looked the function up."""
    function = vars(library).get(name)
    return ctypes.c_void_p.from_address(ctypes.addressof(function)) if function is not None else None


def use_hooks() -> None:
    """Lets calls go to what ``dlsym`` returns now."""
    import _ctypes

    library = _opened()
    if library is None:
        return
    dlsym: Any = getattr(_ctypes, "dlsym")
    for name in _FUNCTIONS:
        word = _word(library, name)
        if word is None:
            continue
        address = dlsym(library._handle, name)
        if word.value is not None and word.value != address:
            _originals.setdefault(name, word.value)
            word.value = address


def use_originals() -> None:
    """Undoes it."""
    library = _opened()
    if library is None:
        return
    for name, address in list(_originals.items()):
        word = _word(library, name)
        if word is not None:
            word.value = address
