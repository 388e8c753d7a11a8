"""Frees compiled code and compiles another function at the same address: address_reuse.py SECONDS

Prints whether the second function got the address of the first. Each function runs for SECONDS.
"""

import ctypes
import sys
import time

import jit

LOOP = """
define double @{name}(i64 %n, double %x) {{
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %a = phi double [%x, %entry], [%c, %loop]
  %b = fadd double %a, {term}
  %c = fdiv double %b, 1.25
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %out
out:
  ret double %c
}}
"""

prototype = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int64, ctypes.c_double)


def season(name, term, seconds):
    engine = jit.engine(LOOP.format(name=name, term=term))
    engine.finalize_object()
    address = engine.get_function_address(name)
    function = prototype(address)
    deadline = time.process_time() + seconds
    while time.process_time() < deadline:
        function(1_000_000, 1.0)
    engine.close()
    return address


first = season("summer", "1.0", float(sys.argv[1]))
second = season("winter", "3.0", float(sys.argv[1]))
print("same address" if first == second else "another address")
