"""Reads a `memray run --native` recording of allocates.py. Prints the number of allocations of its arrays' size; how
many of their stacks reach from Numba's allocator to the C code that calls compiled functions; how many name the
compiled function; and how many have the right lines, of the call and of the inlined function."""

import sys

from memray import FileReader

#: Line numbers in allocates.py: the call of `make`, and the allocation of the array.
TOTAL_LINE, MAKE_LINE = 23, 13

large_allocations = complete_stacks = named_stacks = stacks_with_line = stacks_with_inlined_line = 0
with FileReader(sys.argv[1]) as reader:
    for record in reader.get_allocation_records():
        if not 8_000_000 <= record.size < 8_002_000:
            continue
        try:
            frames = record.hybrid_stack_trace(max_stacks=60)
        except NotImplementedError:  # raised for deallocations
            continue
        large_allocations += 1
        stack = [function for function, *_ in frames]
        compiled = {
            (function, line)
            for function, file, line in frames
            if "__main__" in function and file.endswith("allocates.py")
        }
        stacks_with_line += any("total" in function and line == TOTAL_LINE for function, line in compiled)
        stacks_with_inlined_line += any("make" in function and line == MAKE_LINE for function, line in compiled)
        has_allocator = any(name.startswith("NRT_") for name in stack)
        named_stacks += any("__main__" in name and "total" in name and "cpython" not in name for name in stack)
        complete_stacks += has_allocator and any(
            name in ("Dispatcher_call", "call_cfunc", "compile_and_invoke") for name in stack
        )
print(large_allocations, complete_stacks, named_stacks, stacks_with_line, stacks_with_inlined_line)
