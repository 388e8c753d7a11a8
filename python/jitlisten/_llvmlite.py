"""Frame pointers and unwind tables for code that llvmlite compiles, in a process that started without jitlisten.

The library changes the addresses that ``dlsym`` returns for the functions of ``libllvmlite.so`` that pass a module to
an engine (shim/src/frame_pointers/llvmlite.rs). By then ctypes has looked them up and keeps a function object for each,
whose first word is the address. This module changes that word: every holder of the object, including llvmlite's
wrappers, calls through it.
"""

import ctypes
import sys
from typing import Any, Dict, Optional

_FUNCTIONS = ("LLVMPY_AddModule", "LLVMPY_CreateMCJITCompiler", "LLVMPY_LLJIT_Link")
#: Addresses before the first change. They are kept, because several threads may switch concurrently.
_originals: Dict[str, int] = {}


def _opened_library() -> Optional[ctypes.CDLL]:
    """Returns llvmlite's library, if it has been opened. A wrapper keeps the library in an attribute, whose name
    depends on the version."""
    ffi: Any = sys.modules.get("llvmlite.binding.ffi")
    wrapper = getattr(ffi, "lib", None)
    slots = getattr(type(wrapper), "__slots__", ())
    for name in ("_lib_handle", "_lib"):
        # A property would open the library.
        try:
            library = object.__getattribute__(wrapper, name) if name in slots else None
        except AttributeError:
            continue
        if isinstance(library, ctypes.CDLL):
            return library
    return None


def _address_word(library: ctypes.CDLL, name: str) -> Optional["ctypes.c_void_p"]:
    """Returns the word in which ctypes keeps the address, if it has looked the function up."""
    function = vars(library).get(name)
    return ctypes.c_void_p.from_address(ctypes.addressof(function)) if function is not None else None


def use_hooks() -> None:
    """Redirects calls to the addresses that ``dlsym`` returns now."""
    import _ctypes

    library = _opened_library()
    if library is None:
        return
    dlsym: Any = _ctypes.dlsym
    for name in _FUNCTIONS:
        word = _address_word(library, name)
        if word is None:
            continue
        address = dlsym(library._handle, name)
        if word.value is not None and word.value != address:
            _originals.setdefault(name, word.value)
            word.value = address


def use_originals() -> None:
    """Undoes :func:`use_hooks`."""
    library = _opened_library()
    if library is None:
        return
    for name, address in list(_originals.items()):
        word = _address_word(library, name)
        if word is not None:
            word.value = address
