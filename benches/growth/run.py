#!/usr/bin/env python3
"""How the time grows when one dimension doubles: benches/growth/run.py LIBRARY [DIMENSION...]

Prints a Markdown table: milliseconds of processor time for each size without and with the library, the exponent of the
growth between the smallest and the largest size (least squares over the logarithms), and `worse` where it is above that
of n log n by more than 0.1. Each figure is the best of three runs; machines are noisy, so look at the figures before
the verdict.
"""

import math
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
DIMENSIONS = {
    # name: (smallest size, how often it doubles, what one is, sinks, limit of the address space in KiB)
    "objects": (2_000, 4, "objects of one function", "perfmap,jitdump,unwind", None),
    "images": (500, 4, "objects of one function", "image", None),
    "functions": (2_000, 5, "functions in one object, each a text range of its own", "perfmap,jitdump,unwind", None),
    "ranges": (2_000, 4, "functions in one object, none touching another", "perfmap,jitdump,unwind", None),
    "turns": (10_000, 4, "objects loaded and freed at one address", "perfmap,unwind", None),
    "threads": (8, 4, "threads that load 64 objects each", "perfmap,unwind", None),
    "forks": (2_000, 4, "objects alive at a fork, until the child has been waited for", "perfmap,jitdump,unwind", None),
    "libraries": (125, 4, "libraries opened", "perfmap,unwind", None),
    "narrow": (2_000, 3, "objects, under ulimit -v 2000000", "perfmap,unwind", 2_000_000),
}


def build(place):
    program = place / "growth"
    compiler = os.environ.get("CC", "cc")
    words = [compiler, "-O1", "-rdynamic", f"-I{HERE.parent.parent / 'include'}", str(HERE / "growth.c")]
    subprocess.run([*words, "-pthread", "-ldl", "-o", program], check=True)
    empty = place / "empty.c"
    empty.write_text("int nothing;\n")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", place / "lib0.so", empty], check=True)
    return program


def run(program, place, name, size, library):
    _, _, _, sinks, limit = DIMENSIONS[name]
    environment = dict(os.environ, JITLISTEN=sinks, JITLISTEN_DIR=str(place / "files"))
    environment.pop("LD_PRELOAD", None)
    words = ["env"]
    if library:
        words.append(f"LD_PRELOAD={library}")
    words += [str(program), "objects" if name in ("narrow", "images") else name, str(size), str(place)]
    if limit:
        words = ["sh", "-c", f'ulimit -v {limit}; exec "$@"', "sh", *words]
    (place / "files").mkdir(exist_ok=True)
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    shutil.rmtree(place / "files", ignore_errors=True)
    return float(done.stdout)


def directory_in_memory():
    """ext4 looks at every file that was removed in the last five seconds before it makes one: that is not our
    growth."""
    memory = "/dev/shm"
    return memory if os.path.isdir(memory) and not os.statvfs(memory).f_flag & os.ST_NOEXEC else None


def exponent(sizes, times):
    x, y = [math.log(size) for size in sizes], [math.log(max(time, 1e-3)) for time in times]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y)) / sum((a - mean_x) ** 2 for a in x)


def main():
    library = os.path.abspath(sys.argv[1])
    names = sys.argv[2:] or list(DIMENSIONS)
    status = 0
    print("| what doubles | sizes | without, ms | with, ms | exponent | |\n| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory(dir=directory_in_memory()) as directory:
        place = pathlib.Path(directory)
        program = build(place)
        for name in names:
            smallest, doublings, what, sinks, _ = DIMENSIONS[name]
            sizes = [smallest << step for step in range(doublings)]
            if name == "libraries":
                for number in range(1, sizes[-1]):
                    shutil.copy(place / "lib0.so", place / f"lib{number}.so")
            stock, ours = ([min(run(program, place, name, size, which) for _ in range(3)) for size in sizes]
                           for which in (None, library))
            fitted = exponent(sizes, ours)
            linearithmic = exponent(sizes, [size * math.log(size) for size in sizes])
            figures = [", ".join(f"{time:.1f}" for time in times) for times in (stock, ours)]
            verdict = "worse" if fitted > linearithmic + 0.1 else ""
            status = 1 if verdict else status
            size_words = ", ".join(f"{size:,}" for size in sizes)
            print(
                f"| {what} (`{sinks}`) | {size_words} | {figures[0]} | {figures[1]} | {fitted:.2f} | {verdict} |",
                flush=True,
            )
    return status


sys.exit(main())
