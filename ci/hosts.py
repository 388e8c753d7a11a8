#!/usr/bin/env python3
"""Runs programs that have their own LLVM and are too heavy for every run of the suite: `make test-hosts`.

Each program runs unmodified, in its own environment under target/hosts, without and with the library. The output must
be the same, and every object must be detected and become final. strace counts the objects of the run without the
library: both linkers of LLVM make memory executable once per object. The numbers of objects and names must be as in
`HOSTS`, and the functions listed there must be in the perf map and in images. Prints a table and writes the counts to
records/hosts.tsv, which `ci/support.py` renders.
"""

import csv
import dataclasses
import datetime
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIBRARY = pathlib.Path(os.environ.get("JITLISTEN_LIBRARY", ROOT / "target/release/libjitlisten.so"))
RECORDS = ROOT / "records/hosts.tsv"
HOME = ROOT / f"target/hosts-{os.getpid()}-home"
LANE = "make test-hosts"


@dataclasses.dataclass(eq=False)
class Host:
    kind: str
    program: str
    llvm: str
    linker: str
    note: str
    # Packages to install into the environment; `None` if the system provides the program.
    packages: list | None
    # Program and arguments.
    words: list
    # Minimum number of names in the perf map.
    names: int
    # Exact number of objects.
    objects: int
    # Patterns of function names that the perf map and the images must contain.
    wanted: list
    # Text for standard input.
    typed: str = ""
    # True if caches in the home directory must be removed before each run.
    is_cold: bool = False
    # Environment variables of the run with the library.
    variables: dict = dataclasses.field(default_factory=dict)

    def command(self):
        """Returns the command line; creates the program's virtual environment first."""
        if self.packages is None:
            return self.words
        venv = ROOT / "target/hosts" / "-".join(self.packages).replace("==", "-")
        if not (venv / "complete").exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
            subprocess.run([venv / "bin/pip", "install", "-q", "--only-binary", ":all:", *self.packages], check=True)
            (venv / "complete").touch()
        return [venv / "bin/python", ROOT / "tests/hosts" / self.words[0], *self.words[1:]]

    def prepare(self):
        if self.is_cold:
            shutil.rmtree(HOME)
            HOME.mkdir()


# One program of each kind. `program`, `llvm`, `linker` and `note` are columns of records/hosts.tsv.
# fmt: off
HOSTS = [
    Host(
        "RTTI", "Taichi 1.7.4", "15", "RuntimeDyld", "", ["taichi==1.7.4"], ["kernels_of_taichi.py"], names=120,
        objects=3, wanted=[r"^fill_with_steps_", r"^sum_of_squares_"],
    ),
    Host(
        "JITLink", "Halide 21", "21", "JITLink", "stripped", ["halide==21.0.0", "numpy==2.4.6"], ["pipelines.py", "3"],
        typed="\n\n", names=220, objects=4, wanted=[r"^pipeline0$", r"^pipeline1$", r"^pipeline2$"],
    ),
    Host(
        "no RTTI", "ddx 4.3", "20.1", "JITLink", "no symbols, no RTTI: addresses for names",
        ["ddx-ad==4.3.0", "numpy==2.4.6"], ["models_of_ddx.py", "3"], names=3, objects=3,
        wanted=[r"^libddx\.so\.4\+jit@[0-9a-f]+$"],
    ),
    Host(
        "no RTTI", "apache-tvm-ffi-orcjit 0.1.3", "23", "JITLink", "no symbols, no RTTI: addresses for names",
        ["apache-tvm-ffi-orcjit==0.1.3", "numpy==2.4.6"], ["object_of_orcjit.py"], names=5, objects=5,
        wanted=[r"^libtvm_ffi_orcjit\.so\+jit@[0-9a-f]+$"],
    ),
    Host(
        "own memory manager", "drjit 1.5", "22", "RuntimeDyld", "copies its code", ["drjit==1.5.0", "numpy==2.4.6"],
        ["kernels_of_drjit.py"], names=2, objects=2, wanted=[r"^drjit_[0-9a-f]{32}$"], is_cold=True,
    ),
    Host(
        "cached", "drjit 1.5, from its cache", "none", "its own", "addresses for names",
        ["drjit==1.5.0", "numpy==2.4.6"], ["kernels_of_drjit.py"], names=2, objects=2,
        wanted=[r"^libdrjit-core\.so\+jit@[0-9a-f]+$"],
    ),
    Host(
        "cached", "IREE 3.13, `llvm-cpu`", "bundled", "its own", "an ELF file in memory: addresses for names",
        ["iree-base-compiler==3.13.0", "iree-base-runtime==3.13.0", "numpy==2.4.6"], ["module_of_iree.py"], names=3,
        objects=1, wanted=[r"^_runtime\..*\.so\+jit@[0-9a-f]+$"],
    ),
    Host(
        "list only", "DawDreamer 0.9 (Faust, stripped)", "bundled", "GDB JIT list", "with `JITLISTEN_LLVM=list`",
        ["dawdreamer==0.9.0", "numpy==2.4.6"], ["sound_of_dawdreamer.py"], names=9, objects=1,
        wanted=[r"^computemydsp$"], variables={"JITLISTEN_LLVM": "list"},
    ),
    Host(
        "BPF", "bpftrace 0.17 (Debian 12)", "14", "none", "code for the kernel", None,
        ["/usr/bin/bpftrace", "-e", 'BEGIN { printf("begun\\n"); exit(); }'], names=0, objects=0, wanted=[],
    ),
]
# fmt: on
# A statically linked program, into which nothing can be preloaded. `jitlisten run` must report that.
STATIC = ["/sbin/ldconfig", "--version"]


def run(host, **changes):
    host.prepare()
    process = subprocess.Popen(
        host.command(),
        env={**os.environ, "HOME": str(HOME), **changes},
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = process.communicate(host.typed, timeout=600)
    return process.pid, (process.returncode, out, err)


def count_linked_objects(host):
    """Counts the objects that the program links without the library: the calls that make memory executable."""
    host.prepare()
    trace_file = ROOT / "target" / f"hosts-{os.getpid()}.calls"
    command = [
        "strace",
        "-f",
        "-qq",
        "-e",
        "trace=mprotect,pkey_mprotect",
        "-e",
        "signal=none",
        "-o",
        trace_file,
        *host.command(),
    ]
    environment = {**os.environ, "HOME": str(HOME)}
    subprocess.run(
        command, env=environment, input=host.typed, text=True, stdout=subprocess.DEVNULL, check=True, timeout=600
    )
    count = len(re.findall(r"mprotect\(.*PROT_EXEC", trace_file.read_text()))
    trace_file.unlink()
    return count


def check(host):
    """Returns the problems, and the numbers of objects (linked, loaded, final), names and images."""
    log = ROOT / "target" / f"hosts-{os.getpid()}.log"
    log.unlink(missing_ok=True)
    _, without_library = run(host)
    directory = ROOT / "target" / f"hosts-{os.getpid()}"
    directory.mkdir()
    pid, with_library = run(
        host,
        LD_PRELOAD=str(LIBRARY),
        JITLISTEN="perfmap,image",
        JITLISTEN_DIR=str(directory),
        JITLISTEN_LOG=f"debug:{log}",
        **host.variables,
    )
    images = list(directory.glob(f"image-{pid}-*/object-*.so"))
    image_symbols = subprocess.run(["nm", *images], capture_output=True, text=True).stdout if images else ""
    shutil.rmtree(directory)
    map_file = pathlib.Path(f"/tmp/perf-{pid}.map")
    text = map_file.read_text() if map_file.exists() else ""
    map_file.unlink(missing_ok=True)
    lines = [line.split(" ", 2) for line in text.splitlines() if line.count(" ") >= 2]
    names = [name for start, size, name in lines if (start, size) != ("0", "0")]
    log_text = log.read_text() if log.exists() else ""
    log.unlink(missing_ok=True)
    loaded, final = log_text.count("debug: loaded object "), log_text.count("debug: finalized object ")
    problems = []
    if without_library[0] != 0:
        problems.append(f"fails without the library: {without_library}")
    if without_library != with_library:
        problems.append(f"other output: {with_library}, not {without_library}")
    linked = count_linked_objects(host)
    if (linked, final, loaded) != (host.objects,) * 3:
        problems.append(
            f"{loaded} of {linked} objects were loaded and {final} became final, of {host.objects} that are expected"
        )
    if len(names) < host.names:
        problems.append(f"{len(names)} names, of {host.names} that are expected")
    if not host.objects:
        problems += [line for line in log_text.splitlines() if " warn: " in line]
    wanted_names = [name for name in names if any(re.search(pattern, name) for pattern in host.wanted)]
    problems += [f"no {name} in images" for name in wanted_names if f" {name}\n" not in image_symbols]
    problems += [
        f"no {pattern} in the map" for pattern in host.wanted if not any(re.search(pattern, name) for name in names)
    ]
    return problems, (linked, loaded, final, len(names), len(images))


def check_static():
    """Returns the problems of `jitlisten run` with a static program."""
    results = [
        subprocess.run([*words, *STATIC], capture_output=True, text=True)
        for words in ([], [LIBRARY.parent / "jitlisten", "run", "--"])
    ]
    outputs = [(result.returncode, result.stdout) for result in results]
    is_reported = "is statically linked, so nothing can be preloaded into it" in results[1].stderr
    return (["other output"] if outputs[0] != outputs[1] else []) + (
        [] if is_reported else [f"not said: {results[1].stderr}"]
    )


def record(counts):
    """Writes the counts, a map from host to numbers, to records/hosts.tsv."""
    with open(RECORDS, encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        columns, rows = reader.fieldnames, list(reader)
    today = datetime.date.today().isoformat()
    rows_by_program = {row["program"]: row for row in rows}
    for host, (linked, _, final, *_) in counts.items():
        row = {
            "program": host.program,
            "llvm": host.llvm,
            "linker": host.linker,
            "found": f"{final} of {linked}",
            "counted by": "strace",
            "note": host.note,
            "run by": LANE,
            "date": today,
        }
        if host.program in rows_by_program:
            rows_by_program[host.program].update(row)
        else:
            index = max(index for index, row in enumerate(rows) if row["run by"] == LANE) + 1
            rows.insert(index, row)
    with open(RECORDS, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(
            file, columns, delimiter="\t", quoting=csv.QUOTE_NONE, quotechar=None, lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(rows)


def main():
    failures, counts = 0, {}
    titles = ["linked", "loaded", "final", "names", "images"]
    print(f"{'kind':<19}{'host':<34}", *(f"{title:>7}" for title in titles))
    HOME.mkdir()
    try:
        for host in HOSTS:
            problems, numbers = check(host)
            counts |= {} if problems else {host: numbers}
            line = f"{host.kind:<19}{host.program:<34} " + " ".join(f"{number:>7}" for number in numbers)
            print(line, f" {'; '.join(problems) or 'ok'}", flush=True)
            failures += bool(problems)
    finally:
        shutil.rmtree(HOME)
    problems = check_static()
    print(f"{'static':<19}{STATIC[0]:<75}", "; ".join(problems) or "ok")
    record(counts)
    return 1 if failures or problems else 0


if __name__ == "__main__":
    sys.exit(main())
