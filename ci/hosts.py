#!/usr/bin/env python3
"""Programs with an LLVM of their own that are too heavy for every run of the suite: `make test-hosts`.

Each is run as it is shipped, in an environment of its own under target/venv, without the library and with it: the output must be
the same, and every object must be heard and become final. How many there are is counted by strace, without the library: both LLVMs make
memory executable once for each object. Of objects and names there must be as many as below, and the functions below must be in
the perf map and in images. Prints a table.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIBRARY = pathlib.Path(os.environ.get("JITLISTEN_LIBRARY", ROOT / "target/release/libjitlisten.so"))

#: Name, packages, program with its words, what is typed into it, how many objects and names, names that must be in the map.
HOSTS = [
    ("halide 21", ["halide==21.0.0", "numpy==2.4.6"], ["pipelines.py", "3"], "\n\n", (4, 220), [r"^pipeline0$", r"^pipeline1$", r"^pipeline2$"]),
    ("taichi 1.7", ["taichi==1.7.4"], ["kernels_of_taichi.py"], "", (3, 120), [r"^fill_with_steps_", r"^sum_of_squares_"]),
    # Without symbols and names of types: functions have addresses.
    ("ddx 4.3", ["ddx-ad==4.3.0", "numpy==2.4.6"], ["models_of_ddx.py", "3"], "", (3, 3), [r"^libddx\.so\.4\+jit@[0-9a-f]+$"]),
    ("orcjit 0.1", ["apache-tvm-ffi-orcjit==0.1.3", "numpy==2.4.6"], ["object_of_orcjit.py"], "", (5, 5), [r"^libtvm_ffi_orcjit\.so\+jit@[0-9a-f]+$"]),
]


def environment(name, packages):
    """The interpreter of an environment with these packages."""
    place = ROOT / "target/venv" / name.replace(" ", "-")
    if not (place / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True)
        subprocess.run([place / "bin/pip", "install", "-q", "--only-binary", ":all:", *packages], check=True)
        (place / "complete").touch()
    return place / "bin/python"


def run(python, words, typed, **changes):
    command = [python, ROOT / "tests/hosts" / words[0], *words[1:]]
    process = subprocess.Popen(
        command, env={**os.environ, **changes}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )
    out, err = process.communicate(typed, timeout=600)
    return process.pid, (process.returncode, out, err)


def linked(python, words, typed):
    """How many objects the stock program links: how often it makes memory executable, as the kernel sees it."""
    calls = ROOT / "target" / f"hosts-{os.getpid()}.calls"
    command = ["strace", "-f", "-qq", "-e", "trace=mprotect,pkey_mprotect", "-e", "signal=none", "-o", calls]
    command += [python, ROOT / "tests/hosts" / words[0], *words[1:]]
    subprocess.run(command, input=typed, text=True, stdout=subprocess.DEVNULL, check=True, timeout=600)
    count = len(re.findall(r"mprotect\(.*PROT_EXEC", calls.read_text()))
    calls.unlink()
    return count


def check(name, packages, words, typed, least, wanted):
    """What is wrong, and how many objects were linked, loaded, final and named, and how many images there were."""
    python = environment(name, packages)
    log = ROOT / "target" / f"hosts-{os.getpid()}.log"
    log.unlink(missing_ok=True)
    _, stock = run(python, words, typed)
    directory = ROOT / "target" / f"hosts-{os.getpid()}"
    directory.mkdir()
    pid, ours = run(
        python, words, typed, LD_PRELOAD=str(LIBRARY), JITLISTEN="perfmap,image", JITLISTEN_DIR=str(directory), JITLISTEN_LOG=f"debug:{log}"
    )
    images = list(directory.glob(f"image-{pid}-*/object-*.so"))
    in_images = subprocess.run(["nm", *images], capture_output=True, text=True).stdout
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
    there_are = linked(python, words, typed)
    if (there_are, final, loaded) != (least[0],) * 3:
        wrong.append(f"{loaded} of {there_are} objects were loaded and {final} became final, of {least[0]} that are expected")
    if len(names) < least[1]:
        wrong.append(f"{len(names)} names, of {least[1]} that are expected")
    wrong += [f"no {name} in images" for name in names if any(re.search(w, name) for w in wanted) and f" {name}\n" not in in_images]
    wrong += [f"no {pattern} in the map" for pattern in wanted if not any(re.search(pattern, name) for name in names)]
    return wrong, (there_are, loaded, final, len(names), len(images))


def main():
    failures = 0
    titles = ["linked", "loaded", "final", "names", "images"]
    print(f"{'host':<14}", *(f"{title:>7}" for title in titles))
    for host in HOSTS:
        wrong, numbers = check(*host)
        print(f"{host[0]:<14}", *(f"{number:>7}" for number in numbers), f" {'; '.join(wrong) or 'ok'}", flush=True)
        failures += bool(wrong)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
