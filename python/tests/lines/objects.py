"""Compiles the test programs in forked children of one process, without line tables, with them, and again without, and
compares the objects.

    python objects.py [--short] [--again] [--images] [--only NAME,...] [--json]

Forked children start from the same state, with the same counters in names and nearly the same addresses.

Run it with `LD_PRELOAD=libjitlisten.so JITLISTEN=unwind`, as users do: the library asks for unwind tables. Without the
library, line information alone makes LLVM add unwind tables to functions that need none; nothing else differs.

With `--images`, the runs with line tables also write images that contain LLVM's remarks, as under `jitlisten record`.
"""

import argparse
import gc
import itertools
import json
import os
import pickle
import platform
import re
import subprocess
import sys
import tempfile
import time
import traceback
import warnings

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, os.pardir, os.pardir)]

CAPTURED = []


def capture():
    """Collects each object that this process compiles in `CAPTURED`."""
    import uuid

    from llvmlite import binding

    # UUIDs must be deterministic because they become part of the code of a `with objmode` block.
    uuid_values = itertools.count(1)
    uuid.uuid4 = lambda: uuid.UUID(int=next(uuid_values))

    # Garbage collection at varying moments would change Numba's counters of types.
    gc.disable()

    original = binding.ExecutionEngine.set_object_cache

    def set_object_cache(self, notify_func=None, getbuffer_func=None):
        def notify(module, data):
            CAPTURED.append(bytes(data))
            if notify_func is not None:
                notify_func(module, data)

        return original(self, notify, getbuffer_func)

    binding.ExecutionEngine.set_object_cache = set_object_cache
    _name_constants_by_count()


def _name_constants_by_count():
    """Names constants by a counter. Until Numba 0.64 their names contain the address of a Python object, which also
    determines their order."""
    from numba.core import pythonapi

    pseudo_addresses, kept_alive = {}, []

    def stable_id(value):
        if sys._getframe(1).f_code.co_name not in ("serialize_uncached", "serialize_object"):
            return id(value)
        if id(value) not in pseudo_addresses:
            pseudo_addresses[id(value)] = 0x7F0000000000 + 16 * len(pseudo_addresses)
            kept_alive.append(value)
        return pseudo_addresses[id(value)]

    pythonapi.id = stable_id


def count_remarks():
    """Number of LLVM's remarks in the images of this process."""
    count = 0
    with open("/proc/self/maps") as maps:
        images = {line.split(maxsplit=5)[5].rstrip("\n") for line in maps if "r-xp" in line and "/object-" in line}
    for path in images:
        with open(path, "rb") as image:
            count += image.read().count(b"\tloop not vectorized: ")
    return count


def compile_programs(names, lines, images=False):
    """Returns each program's result, its objects, and the CPU time. Runs in a forked child."""
    import programs

    if lines and images:
        import jitlisten

        jitlisten.enable("image", lines=False)

    warnings.simplefilter("ignore")
    if lines:
        import jitlisten._lines

        jitlisten._lines.install()
        assert jitlisten._lines.status()["active"], jitlisten._lines.status()
    outcomes = {}
    for name in names:
        del CAPTURED[:]
        start_time = time.process_time()
        try:
            result = repr(programs.PROGRAMS[name]())
        except Exception as error:
            result = "%s: %s" % (type(error).__name__, str(error)[-300:])
        outcomes[name] = (result, list(CAPTURED), time.process_time() - start_time)
    if lines and images and platform.machine() == "x86_64":
        assert count_remarks() > 0
    return outcomes


def compile_in_child(names, lines, images=False):
    with tempfile.TemporaryFile() as file:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            try:
                file.write(pickle.dumps(compile_programs(names, lines, images)))
                file.flush()
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        _, status = os.waitpid(child, 0)
        assert status == 0, "a child ended with %d" % status
        file.seek(0)
        return pickle.load(file)


def instructions(data):
    """Disassembled instructions, without padding and jump distances."""
    with tempfile.NamedTemporaryFile(suffix=".o") as file:
        file.write(data)
        file.flush()
        command = ["objdump", "-d", "-w", "--no-show-raw-insn", file.name]
        text = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.decode()
    normalized = []
    for line in text.splitlines():
        fields = line.partition("\t")[2].split("#")[0].split()
        if fields and "nop" not in line and fields[:2] != ["xchg", "%ax,%ax"]:
            is_branch = fields[0].startswith(("j", "call", "loop"))
            normalized.append(fields[0] if is_branch else re.sub("0x[0-9a-f]{10,}", "ADDRESS", " ".join(fields)))
    return normalized


def is_only_padded_differently(pair, differences):
    """True if only padding differs, which occurs only with LLVM 11 (Numba 0.56). That release aligns loops with longer
    jumps, but uses `nop`s where a line begins. Newer releases never differ, so none is exempt."""
    import llvmlite.binding

    # Relocated fields move if a preceding branch becomes longer.
    other_differences = [
        difference for difference in differences if ".text" not in difference and difference != "relocations"
    ]
    if llvmlite.binding.llvm_version_info[0] != 11 or other_differences:
        return False
    first, second = (instructions(data) for data in pair)
    return first == second


def compare_runs(first, second):
    """Compares two runs: returns totals, and a line for each difference."""
    import elf

    total = {
        "programs": len(first),
        "objects": 0,
        "different": 0,
        "padded": 0,
        "masked": 0,
        "text": 0,
        "size": [0, 0],
        "seconds": [0, 0],
    }
    details = []
    for name in first:
        (first_result, first_objects, first_seconds), (second_result, second_objects, second_seconds) = (
            first[name],
            second[name],
        )
        total["seconds"][0] += first_seconds
        total["seconds"][1] += second_seconds
        if first_result != second_result:
            details.append("%s: results %s and %s" % (name, first_result, second_result))
        if len(first_objects) != len(second_objects):
            details.append("%s: %d and %d objects" % (name, len(first_objects), len(second_objects)))
        total["objects"] += max(len(first_objects), len(second_objects))
        total["different"] += abs(len(first_objects) - len(second_objects))
        for number, pair in enumerate(zip(first_objects, second_objects)):
            loaded = [elf.read(data) for data in pair]
            differences, address_count = elf.compare(*loaded)
            total["masked"] += address_count
            total["text"] += sum(len(data) for name, data in loaded[0].sections.items() if "text" in name)
            total["size"][0] += loaded[0].size
            total["size"][1] += loaded[1].size
            if differences and is_only_padded_differently(pair, differences):
                total["padded"] += 1
            elif differences:
                total["different"] += 1
                details.append("%s, object %d: %s" % (name, number, "; ".join(differences)))
    return total, details


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--short", action="store_true", help="one program of each kind")
    parser.add_argument("--again", action="store_true", help="compare without lines to without lines, too")
    parser.add_argument("--images", action="store_true", help="with images where there are lines")
    parser.add_argument("--only", help="these programs")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()

    capture()
    import numba
    import programs

    names = list(programs.PROGRAMS)
    if arguments.short:
        names = [name for name in names if name in programs.SHORT]
    if arguments.only:
        names = arguments.only.split(",")
    without_lines = compile_in_child(names, False)
    compared = {"lines": compare_runs(without_lines, compile_in_child(names, True, arguments.images))}
    if arguments.again:
        compared["again"] = compare_runs(without_lines, compile_in_child(names, False))
    failed = ["%s: %s" % (name, result) for name, (result, _, _) in without_lines.items() if "Error: " in result]
    if arguments.json:
        print(json.dumps({"numba": numba.__version__, "compared": compared, "failed": failed}))
        return
    for comparison, (total, details) in compared.items():
        print(numba.__version__, comparison, total)
        for detail in details:
            print("   ", detail)
    for failure in failed:
        print("    fails without lines, too:", failure)


if __name__ == "__main__":
    main()
