#!/usr/bin/env python3
"""Programs with an LLVM of their own that are too heavy for every run of the suite: `make test-hosts`.

Each is run as it is shipped, in an environment of its own under target/hosts, without the library and with it: the
output must be the same, and every object must be heard and become final. How many there are is counted by strace,
without the library: both LLVMs make memory executable once for each object. Of objects and names there must be as many
as below, and the functions below must be in the perf map and in images. Prints a table, and writes what was found to
records/hosts.tsv (`ci/support.py` renders it).
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
    packages: list | None
    words: list
    names: int
    objects: int
    wanted: list
    typed: str = ""
    is_cold: bool = False
    variables: dict = dataclasses.field(default_factory=dict)

    def command(self):
        """What is run; the environment is made first."""
        if self.packages is None:
            return self.words
        place = ROOT / "target/hosts" / "-".join(self.packages).replace("==", "-")
        if not (place / "complete").exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True)
            subprocess.run([place / "bin/pip", "install", "-q", "--only-binary", ":all:", *self.packages], check=True)
            (place / "complete").touch()
        return [place / "bin/python", ROOT / "tests/hosts" / self.words[0], *self.words[1:]]

    def prepare(self):
        if self.is_cold:
            shutil.rmtree(HOME)
            HOME.mkdir()


#: One host of each kind, as records/hosts.tsv has it: program, LLVM and linker, note; what is installed (`None`: the
#: system has it), the program with its words, what is typed into it, the environment, how many objects and names, names
#: that must be in the map. Of a `cold` host, the caches are removed before each run; those of the next one stay.
HOSTS = [
    Host(
        "RTTI",
        "Taichi 1.7.4",
        "15",
        "RuntimeDyld",
        "",
        ["taichi==1.7.4"],
        ["kernels_of_taichi.py"],
        names=120,
        objects=3,
        wanted=[r"^fill_with_steps_", r"^sum_of_squares_"],
    ),
    Host(
        "JITLink",
        "Halide 21",
        "21",
        "JITLink",
        "stripped",
        ["halide==21.0.0", "numpy==2.4.6"],
        ["pipelines.py", "3"],
        typed="\n\n",
        names=220,
        objects=4,
        wanted=[r"^pipeline0$", r"^pipeline1$", r"^pipeline2$"],
    ),
    Host(
        "no RTTI",
        "ddx 4.3",
        "20.1",
        "JITLink",
        "no symbols, no RTTI: addresses for names",
        ["ddx-ad==4.3.0", "numpy==2.4.6"],
        ["models_of_ddx.py", "3"],
        names=3,
        objects=3,
        wanted=[r"^libddx\.so\.4\+jit@[0-9a-f]+$"],
    ),
    Host(
        "no RTTI",
        "apache-tvm-ffi-orcjit 0.1.3",
        "23",
        "JITLink",
        "no symbols, no RTTI: addresses for names",
        ["apache-tvm-ffi-orcjit==0.1.3", "numpy==2.4.6"],
        ["object_of_orcjit.py"],
        names=5,
        objects=5,
        wanted=[r"^libtvm_ffi_orcjit\.so\+jit@[0-9a-f]+$"],
    ),
    Host(
        "own memory manager",
        "drjit 1.5",
        "22",
        "RuntimeDyld",
        "copies its code",
        ["drjit==1.5.0", "numpy==2.4.6"],
        ["kernels_of_drjit.py"],
        names=2,
        objects=2,
        wanted=[r"^drjit_[0-9a-f]{32}$"],
        is_cold=True,
    ),
    Host(
        "cached",
        "drjit 1.5, from its cache",
        "none",
        "its own",
        "addresses for names",
        ["drjit==1.5.0", "numpy==2.4.6"],
        ["kernels_of_drjit.py"],
        names=2,
        objects=2,
        wanted=[r"^libdrjit-core\.so\+jit@[0-9a-f]+$"],
    ),
    Host(
        "cached",
        "IREE 3.13, `llvm-cpu`",
        "bundled",
        "its own",
        "an ELF file in memory: addresses for names",
        ["iree-base-compiler==3.13.0", "iree-base-runtime==3.13.0", "numpy==2.4.6"],
        ["module_of_iree.py"],
        names=3,
        objects=1,
        wanted=[r"^_runtime\..*\.so\+jit@[0-9a-f]+$"],
    ),
    Host(
        "list only",
        "DawDreamer 0.9 (Faust, stripped)",
        "bundled",
        "GDB JIT list",
        "with `JITLISTEN_LLVM=list`",
        ["dawdreamer==0.9.0", "numpy==2.4.6"],
        ["sound_of_dawdreamer.py"],
        names=9,
        objects=1,
        wanted=[r"^computemydsp$"],
        variables={"JITLISTEN_LLVM": "list"},
    ),
    Host(
        "BPF",
        "bpftrace 0.17 (Debian 12)",
        "14",
        "none",
        "code for the kernel",
        None,
        ["/usr/bin/bpftrace", "-e", 'BEGIN { printf("begun\\n"); exit(); }'],
        names=0,
        objects=0,
        wanted=[],
    ),
]
#: Nothing can be preloaded into it, and `jitlisten run` says so.
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


def linked(host):
    """How many objects the stock program links: how often it makes memory executable, as the kernel sees it."""
    host.prepare()
    calls = ROOT / "target" / f"hosts-{os.getpid()}.calls"
    command = [
        "strace",
        "-f",
        "-qq",
        "-e",
        "trace=mprotect,pkey_mprotect",
        "-e",
        "signal=none",
        "-o",
        calls,
        *host.command(),
    ]
    environment = {**os.environ, "HOME": str(HOME)}
    subprocess.run(
        command, env=environment, input=host.typed, text=True, stdout=subprocess.DEVNULL, check=True, timeout=600
    )
    count = len(re.findall(r"mprotect\(.*PROT_EXEC", calls.read_text()))
    calls.unlink()
    return count


def check(host):
    """What is wrong, and how many objects were linked, loaded, final and named, and how many images there were."""
    log = ROOT / "target" / f"hosts-{os.getpid()}.log"
    log.unlink(missing_ok=True)
    _, stock = run(host)
    directory = ROOT / "target" / f"hosts-{os.getpid()}"
    directory.mkdir()
    pid, ours = run(
        host,
        LD_PRELOAD=str(LIBRARY),
        JITLISTEN="perfmap,image",
        JITLISTEN_DIR=str(directory),
        JITLISTEN_LOG=f"debug:{log}",
        **host.variables,
    )
    images = list(directory.glob(f"image-{pid}-*/object-*.so"))
    in_images = subprocess.run(["nm", *images], capture_output=True, text=True).stdout if images else ""
    shutil.rmtree(directory)
    map_file = pathlib.Path(f"/tmp/perf-{pid}.map")
    text = map_file.read_text() if map_file.exists() else ""
    map_file.unlink(missing_ok=True)
    lines = [line.split(" ", 2) for line in text.splitlines() if line.count(" ") >= 2]
    names = [name for start, size, name in lines if (start, size) != ("0", "0")]
    heard = log.read_text() if log.exists() else ""
    log.unlink(missing_ok=True)
    loaded, final = heard.count("debug: loaded ObjectId("), heard.count("debug: finalized ObjectId(")
    wrong = []
    if stock[0] != 0:
        wrong.append(f"fails without the library: {stock}")
    if stock != ours:
        wrong.append(f"other output: {ours}, not {stock}")
    there_are = linked(host)
    if (there_are, final, loaded) != (host.objects,) * 3:
        wrong.append(
            f"{loaded} of {there_are} objects were loaded and {final} became final, of {host.objects} that are expected"
        )
    if len(names) < host.names:
        wrong.append(f"{len(names)} names, of {host.names} that are expected")
    if not host.objects:
        wrong += [line for line in heard.splitlines() if " warn: " in line]
    shown = [name for name in names if any(re.search(w, name) for w in host.wanted)]
    wrong += [f"no {name} in images" for name in shown if f" {name}\n" not in in_images]
    wrong += [
        f"no {pattern} in the map" for pattern in host.wanted if not any(re.search(pattern, name) for name in names)
    ]
    return wrong, (there_are, loaded, final, len(names), len(images))


def check_static():
    """What is wrong with how a static program is run."""
    ran = [
        subprocess.run([*words, *STATIC], capture_output=True, text=True)
        for words in ([], [LIBRARY.parent / "jitlisten", "run", "--"])
    ]
    outputs = [(one.returncode, one.stdout) for one in ran]
    said = "is statically linked, so nothing can be preloaded into it" in ran[1].stderr
    return (["other output"] if outputs[0] != outputs[1] else []) + ([] if said else [f"not said: {ran[1].stderr}"])


def record(found):
    """Writes what was found into the records: {host: counts}."""
    with open(RECORDS, encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        columns, rows = reader.fieldnames, list(reader)
    today = datetime.date.today().isoformat()
    places = {row["program"]: row for row in rows}
    for host, (there_are, _, final, *_) in found.items():
        row = {
            "program": host.program,
            "llvm": host.llvm,
            "linker": host.linker,
            "found": f"{final} of {there_are}",
            "counted by": "strace",
            "note": host.note,
            "run by": LANE,
            "date": today,
        }
        if host.program in places:
            places[host.program].update(row)
        else:
            at = max(at for at, row in enumerate(rows) if row["run by"] == LANE) + 1
            rows.insert(at, row)
    with open(RECORDS, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(
            file, columns, delimiter="\t", quoting=csv.QUOTE_NONE, quotechar=None, lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(rows)


def main():
    failures, found = 0, {}
    titles = ["linked", "loaded", "final", "names", "images"]
    print(f"{'kind':<19}{'host':<34}", *(f"{title:>7}" for title in titles))
    HOME.mkdir()
    try:
        for host in HOSTS:
            wrong, numbers = check(host)
            found |= {} if wrong else {host: numbers}
            row = f"{host.kind:<19}{host.program:<34} " + " ".join(f"{number:>7}" for number in numbers)
            print(row, f" {'; '.join(wrong) or 'ok'}", flush=True)
            failures += bool(wrong)
    finally:
        shutil.rmtree(HOME)
    wrong = check_static()
    print(f"{'static':<19}{STATIC[0]:<75}", "; ".join(wrong) or "ok")
    record(found)
    return 1 if failures or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
