"""Functions that live for one call, each with a name and a line of its own: lambdas.py COUNT. Prints by how many kB the
resident memory grew behind the first tenth.
"""

import sys
import time
import types


def template():
    total = 0
    for number in range(60):
        total += number * number
    return total


def resident():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))


def run(numbers):
    for number in numbers:
        code = template.__code__.replace(co_name=f"lived_{number}", co_filename=f"file_{number}.py")
        if sys.version_info >= (3, 11):
            code = code.replace(co_qualname=f"lived_{number}")
        types.FunctionType(code, {})()


count = int(sys.argv[1])
run(range(count // 10))
before = resident()
run(range(count // 10, count))
print(resident() - before, flush=True)
# What a thread does behind its last sample has the stack of that sample: let it be another function's.
end = time.process_time() + 0.1
while time.process_time() < end:
    pass
