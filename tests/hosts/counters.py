"""Statistics of the libjitlisten in this process, keyed by the names in its C header; empty if it is not loaded."""

import ctypes
import pathlib
import re

HEADER = pathlib.Path(__file__).parents[2] / "include/jitlisten.h"


def read_statistics():
    try:
        get_statistics = ctypes.CDLL(None).jitlisten_get_statistics
    except AttributeError:
        return {}
    body = re.search(r"struct jitlisten_statistics \{(.*?)\n\};", HEADER.read_text(), re.DOTALL).group(1)
    names = re.findall(r"^\s+uint64_t (\w+);", body, re.MULTILINE)
    fields = [("size", ctypes.c_size_t)] + [(name, ctypes.c_uint64) for name in names]
    statistics = type("Statistics", (ctypes.Structure,), {"_fields_": fields})()
    statistics.size = ctypes.sizeof(statistics)
    if get_statistics(ctypes.byref(statistics)) != 0:
        return {}
    return {name: getattr(statistics, name) for name in names}
