"""Reads what `memray run --native` recorded of allocates.py: prints how many allocations of its arrays' size there
were, and in how many of their stacks the native frames go from Numba's allocator up to the C code that calls compiled
functions, and how many have the compiled function by name."""

import sys

from memray import FileReader

#: Lines of allocates.py: the call of `make`, and the array.
TOTAL, MAKE = 23, 13

large = whole = named = lines = inlined = 0
with FileReader(sys.argv[1]) as reader:
    for record in reader.get_allocation_records():
        if not 8_000_000 <= record.size < 8_002_000:
            continue
        try:
            frames = record.hybrid_stack_trace(max_stacks=60)
        except NotImplementedError:  # a deallocation
            continue
        large += 1
        stack = [function for function, *_ in frames]
        compiled = {
            (function, line)
            for function, file, line in frames
            if "__main__" in function and file.endswith("allocates.py")
        }
        lines += any("total" in function and line == TOTAL for function, line in compiled)
        inlined += any("make" in function and line == MAKE for function, line in compiled)
        allocator = any(name.startswith("NRT_") for name in stack)
        named += any("__main__" in name and "total" in name and "cpython" not in name for name in stack)
        whole += allocator and any(name in ("Dispatcher_call", "call_cfunc", "compile_and_invoke") for name in stack)
print(large, whole, named, lines, inlined)
