"""Compiles the programs in children of one process, without lines, with lines, and without again, and compares the
objects.

    python objects.py [--short] [--again] [--images] [--only NAME,...] [--json]

A child of a fork begins where the others begin: the same counters in names, nearly the same addresses.

Run it with `LD_PRELOAD=libjitlisten.so JITLISTEN=unwind`, as users do: the library asks for unwind tables. Without it,
a description of lines alone makes LLVM add some for functions that need none; all else is the same.

`--images`: where there are lines, there are images with LLVM's remarks, too, as under `jitlisten record`.
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
    """Has every object that is compiled in this process put into `CAPTURED`."""
    import uuid

    from llvmlite import binding

    # Written into the code of a `with objmode` block.
    numbers = itertools.count(1)
    uuid.uuid4 = lambda: uuid.UUID(int=next(numbers))

    # What is found to be garbage, and when, moves Numba's own counters of types.
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
    """Until 0.64 the address of a Python object is part of a constant's name, and the order of constants depends on
    it."""
    from numba.core import pythonapi

    numbers, kept = {}, []

    def number(value):
        if sys._getframe(1).f_code.co_name not in ("serialize_uncached", "serialize_object"):
            return id(value)
        if id(value) not in numbers:
            numbers[id(value)] = 0x7F0000000000 + 16 * len(numbers)
            kept.append(value)
        return numbers[id(value)]

    pythonapi.id = number


def remarks():
    """How many remarks of LLVM the images of this process carry."""
    found = 0
    with open("/proc/self/maps") as maps:
        images = {line.split(maxsplit=5)[5].rstrip("\n") for line in maps if "r-xp" in line and "/object-" in line}
    for path in images:
        with open(path, "rb") as image:
            found += image.read().count(b"\tloop not vectorized: ")
    return found


def run(names, lines, images=False):
    """In a child: the objects of each program, its result, and the processor time."""
    import programs

    if lines and images:
        import jitlisten

        jitlisten.enable("image", lines=False)

    warnings.simplefilter("ignore")
    if lines:
        import jitlisten._lines

        jitlisten._lines.install()
        assert jitlisten._lines.status()["active"], jitlisten._lines.status()
    done = {}
    for name in names:
        del CAPTURED[:]
        begin = time.process_time()
        try:
            result = repr(programs.PROGRAMS[name]())
        except Exception as error:
            result = "%s: %s" % (type(error).__name__, str(error)[-300:])
        done[name] = (result, list(CAPTURED), time.process_time() - begin)
    if lines and images and platform.machine() == "x86_64":
        assert remarks() > 0
    return done


def in_child(names, lines, images=False):
    with tempfile.TemporaryFile() as file:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            try:
                file.write(pickle.dumps(run(names, lines, images)))
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
    """What the processor is asked to do, without padding and distances."""
    with tempfile.NamedTemporaryFile(suffix=".o") as file:
        file.write(data)
        file.flush()
        command = ["objdump", "-d", "-w", "--no-show-raw-insn", file.name]
        text = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.decode()
    found = []
    for line in text.splitlines():
        words = line.partition("\t")[2].split("#")[0].split()
        if words and "nop" not in line and words[:2] != ["xchg", "%ax,%ax"]:
            jumps = words[0].startswith(("j", "call", "loop"))
            found.append(words[0] if jumps else re.sub("0x[0-9a-f]{10,}", "ADDRESS", " ".join(words)))
    return found


def padded_otherwise(pair, different):
    """LLVM 11 alone (Numba 0.56) aligns loops with longer jumps, and with nothing where a line begins: there it takes
    `nop`s.

    Of the newer ones, none does: the exception is made for no other.
    """
    import llvmlite.binding

    # Where a branch is longer, what is relocated behind it moves.
    moved = [what for what in different if ".text" not in what and what != "relocations"]
    if llvmlite.binding.llvm_version_info[0] != 11 or moved:
        return False
    one, two = (instructions(data) for data in pair)
    return one == two


def report(one, two):
    """Of two runs: totals, and what differs."""
    import elf

    total = {
        "programs": len(one), "objects": 0, "different": 0, "padded": 0, "masked": 0, "text": 0, "size": [0, 0],
        "seconds": [0, 0],
    }
    details = []
    for name in one:
        (result_one, objects_one, seconds_one), (result_two, objects_two, seconds_two) = one[name], two[name]
        total["seconds"][0] += seconds_one
        total["seconds"][1] += seconds_two
        if result_one != result_two:
            details.append("%s: results %s and %s" % (name, result_one, result_two))
        if len(objects_one) != len(objects_two):
            details.append("%s: %d and %d objects" % (name, len(objects_one), len(objects_two)))
        total["objects"] += max(len(objects_one), len(objects_two))
        total["different"] += abs(len(objects_one) - len(objects_two))
        for number, pair in enumerate(zip(objects_one, objects_two)):
            loaded = [elf.read(data) for data in pair]
            different, masked = elf.compare(*loaded)
            total["masked"] += masked
            total["text"] += sum(len(data) for name, data in loaded[0].sections.items() if "text" in name)
            total["size"][0] += loaded[0].size
            total["size"][1] += loaded[1].size
            if different and padded_otherwise(pair, different):
                total["padded"] += 1
            elif different:
                total["different"] += 1
                details.append("%s, object %d: %s" % (name, number, "; ".join(different)))
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
    without = in_child(names, False)
    compared = {"lines": report(without, in_child(names, True, arguments.images))}
    if arguments.again:
        compared["again"] = report(without, in_child(names, False))
    failed = ["%s: %s" % (name, result) for name, (result, _, _) in without.items() if "Error: " in result]
    if arguments.json:
        print(json.dumps({"numba": numba.__version__, "compared": compared, "failed": failed}))
        return
    for what, (total, details) in compared.items():
        print(numba.__version__, what, total)
        for line in details:
            print("   ", line)
    for line in failed:
        print("    fails without lines, too:", line)


if __name__ == "__main__":
    main()
