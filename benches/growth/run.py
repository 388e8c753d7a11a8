#!/usr/bin/env python3
"""Growth of processor time as one dimension doubles: benches/growth/run.py LIBRARY [DIMENSION...]

Prints a Markdown table: milliseconds of processor time for each size without and with the library, and the exponent of
the growth (least squares over the logarithms). The verdict is `worse` if the exponent exceeds that of n log n by more
than 0.1. Each time is the minimum of three runs. Machines are noisy, so check the times before the verdict.
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
    # name: (smallest size, number of sizes, description of one unit, sinks, address space limit in KiB)
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


def build(directory):
    program = directory / "growth"
    compiler = os.environ.get("CC", "cc")
    command = [compiler, "-O1", "-rdynamic", f"-I{HERE.parent.parent / 'include'}", str(HERE / "growth.c")]
    subprocess.run([*command, "-pthread", "-ldl", "-o", program], check=True)
    empty = directory / "empty.c"
    empty.write_text("int nothing;\n")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", directory / "lib0.so", empty], check=True)
    return program


def run(program, directory, name, size, library):
    _, _, _, sinks, limit = DIMENSIONS[name]
    environment = dict(os.environ, JITLISTEN=sinks, JITLISTEN_DIR=str(directory / "files"))
    environment.pop("LD_PRELOAD", None)
    command = ["env"]
    if library:
        command.append(f"LD_PRELOAD={library}")
    command += [str(program), "objects" if name in ("narrow", "images") else name, str(size), str(directory)]
    if limit:
        command = ["sh", "-c", f'ulimit -v {limit}; exec "$@"', "sh", *command]
    (directory / "files").mkdir(exist_ok=True)
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    shutil.rmtree(directory / "files", ignore_errors=True)
    return float(result.stdout)


def directory_in_memory():
    """Returns a directory in memory. On ext4, each creation of a file examines all files removed in the last
    five seconds, which would distort the growth."""
    memory = "/dev/shm"
    return memory if os.path.isdir(memory) and not os.statvfs(memory).f_flag & os.ST_NOEXEC else None


def exponent(sizes, times):
    log_sizes, log_times = [math.log(size) for size in sizes], [math.log(max(time, 1e-3)) for time in times]
    mean_size, mean_time = sum(log_sizes) / len(log_sizes), sum(log_times) / len(log_times)
    return sum((size - mean_size) * (time - mean_time) for size, time in zip(log_sizes, log_times)) / sum(
        (size - mean_size) ** 2 for size in log_sizes
    )


def main():
    library = os.path.abspath(sys.argv[1])
    names = sys.argv[2:] or list(DIMENSIONS)
    status = 0
    print("| what doubles | sizes | without, ms | with, ms | exponent | |\n| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory(dir=directory_in_memory()) as directory:
        scratch = pathlib.Path(directory)
        program = build(scratch)
        for name in names:
            smallest, doublings, unit, sinks, _ = DIMENSIONS[name]
            sizes = [smallest << step for step in range(doublings)]
            if name == "libraries":
                for number in range(1, sizes[-1]):
                    shutil.copy(scratch / "lib0.so", scratch / f"lib{number}.so")
            stock_times, our_times = (
                [min(run(program, scratch, name, size, preloaded) for _ in range(3)) for size in sizes]
                for preloaded in (None, library)
            )
            our_exponent = exponent(sizes, our_times)
            linearithmic = exponent(sizes, [size * math.log(size) for size in sizes])
            time_cells = [", ".join(f"{time:.1f}" for time in times) for times in (stock_times, our_times)]
            verdict = "worse" if our_exponent > linearithmic + 0.1 else ""
            status = 1 if verdict else status
            size_cell = ", ".join(f"{size:,}" for size in sizes)
            print(
                f"| {unit} (`{sinks}`) | {size_cell} | {time_cells[0]} | {time_cells[1]}"
                f" | {our_exponent:.2f} | {verdict} |",
                flush=True,
            )
    return status


sys.exit(main())
