"""Functions that are each called once and freed, with their own names and line numbers: lambdas.py COUNT. Prints by how
many kB the resident memory grew after the first tenth of the calls.
"""

import sys
import time
import types


def template():
    total = 0
    for number in range(60):
        total += number * number
    return total


def resident_kb():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))


def run(indices):
    for index in indices:
        code = template.__code__.replace(co_name=f"lived_{index}", co_filename=f"file_{index}.py")
        if sys.version_info >= (3, 11):
            code = code.replace(co_qualname=f"lived_{index}")
        types.FunctionType(code, {"__builtins__": __builtins__})()


count = int(sys.argv[1])
run(range(count // 10))
resident_before = resident_kb()
run(range(count // 10, count))
print(resident_kb() - resident_before, flush=True)
# After a thread's last sample, its remaining time is charged to the stack of that sample. Therefore, end in another
# function.
end = time.process_time() + 0.1
while time.process_time() < end:
    pass
