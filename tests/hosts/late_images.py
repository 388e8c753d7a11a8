"""Creates images for running code: three threads run sixty functions while the image sink is switched on and off.

late_images.py LIBRARY
"""

import ctypes
import sys
import threading

import jit

LIBRARY = ctypes.CDLL(sys.argv[1])
SOURCE = """
define i64 @f{0}(i64 %n) {{
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %s = phi i64 [{0}, %entry], [%sum, %loop]
  %r = urem i64 %i, 7
  %sum = add i64 %s, %r
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %out
out:
  ret i64 %sum
}}
"""

engine = jit.engine()
# ctypes releases the GIL during these calls.
prototype = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
functions = []
for number in range(60):
    functions.append(prototype(jit.compile_into(engine, SOURCE.format(number), f"f{number}")))
expected = [function(5_000) for function in functions]
mismatches = 0
should_stop = False


def work():
    global mismatches
    while not should_stop:
        mismatches += sum(function(5_000) != result for function, result in zip(functions, expected))


def image_count():
    with open("/proc/self/maps") as maps:
        return sum("/object-" in line and " r-xp " in line for line in maps)


threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
for _ in range(10):
    assert LIBRARY.jitlisten_enable(b"image") == 0
    assert LIBRARY.jitlisten_disable(b"image") == 0
should_stop = True
for thread in threads:
    thread.join()
print("wrong:", mismatches)
print("images:", image_count())
