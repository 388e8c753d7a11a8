"""What runs inside the emulated machine: the scenarios of the test suite, each with the real tool, and a table of what
came of it.

Everything it needs is on the second disk: the library, the hosts of tests/hosts, programs and test binaries that were
cross-compiled. It leaves the table there (scenario, verdict, seconds, what was seen) and the tools' output in
`results/SCENARIO.log`. Names on the first line of the file `only` restrict it to these scenarios.

The machine is slow, and how slow depends on what else its host does: scenarios wait for states, and the time limits are
only there so that a hang is noticed.
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

PAYLOAD = pathlib.Path("/payload")
RESULTS = PAYLOAD / "results"
LIBRARY = PAYLOAD / "libjitlisten.so"
WHEELS = pathlib.Path("/opt/wheels")
CHAIN = ["gamma", "beta", "alpha"]
LIMIT = 900

scenarios = []


class Failed(Exception):
    """What was seen instead of what should have been."""


class Unable(Exception):
    """A tool of this machine cannot be had, or cannot do it here: why."""


def scenario(function):
    scenarios.append(function)
    return function


def require(truth, what):
    if not truth:
        raise Failed(what)


# --- processes --------------------------------------------------------------------------------------------------------

log = sys.stdout


def environment(preload=True, **variables):
    base = {
        "PATH": f"{WHEELS}/bin:" + os.environ["PATH"],
        "HOME": "/root",
        "LC_ALL": "C.UTF-8",
        "PYTHONPATH": f"{WHEELS}:{PAYLOAD}/hosts",
        "PYTHONDONTWRITEBYTECODE": "1",
        "NUMBA_CACHE_DIR": "/tmp/numba-cache",
    }
    if preload:
        base["LD_PRELOAD"] = str(LIBRARY)
        base["JITLISTEN_LOG"] = f"debug:{RESULTS}/jitlisten.log"
    return base | variables


def run(*words, env=None, may_fail=False, limit=LIMIT):
    """Runs a tool to its end; what it printed goes into the log, its standard output is returned."""
    words = [str(word) for word in words]
    print("$", *words, file=log, flush=True)
    # A tool must not have the library that its host is preloaded with.
    done = subprocess.run(words, env=env or environment(preload=False), capture_output=True, timeout=limit)
    out, error = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    print(out[:200_000], error[:20_000], f"-> {done.returncode}", sep="\n", file=log, flush=True)
    if done.returncode != 0 and not may_fail:
        raise Failed(f"{pathlib.Path(words[0]).name} ends with {done.returncode}: {(error or out).strip()[-300:]}")
    return out if not may_fail else out + error


class Host:
    """A process of ours in the background, with pipes."""

    def __init__(self, *words, env=None):
        self.words = [str(word) for word in words]
        print("$", *self.words, "&", file=log, flush=True)
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(self.words, env=env or environment(), stdin=pipe, stdout=pipe, stderr=log)
        self.pid = self.process.pid

    def wait_for(self, line):
        while True:
            read = self.process.stdout.readline().decode()
            if not read:
                raise Failed(f"the host ends with {self.process.wait()} before it says {line!r}")
            print("host:", read.rstrip(), file=log, flush=True)
            if read.strip() == line:
                return

    def say(self, line):
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def chain(*arguments, **env):
    """The chain under stock Numba, in its loop for ever."""
    return Host("python3", PAYLOAD / "hosts/chain.py", 100_000, *arguments, env=environment(**env))


# --- judging ----------------------------------------------------------------------------------------------------------


def names(symbol, function):
    """As tests/src/scenario.rs: the bare identifier."""
    return re.search(rf"(?<!\w){function}(?!\w)", symbol) is not None


def perf_samples(data, pid=None):
    """[[(symbol or None, object), ...], ...] of `perf script`, leaf first."""
    text = run("perf", "script", "--no-inline", "-F", "comm,pid,tid,ip,sym,dso", "-i", data)
    samples, frames, last = [], None, 0
    for line in text.splitlines():
        head = re.match(r"\S.*?\s(\d+)/\s*\d+", line)
        frame = re.match(r"\s+([0-9a-f]+) (.*) \((.*)\)$", line)
        ip = int(frame[1], 16) if frame else 0
        if head:
            frames, last = [], 0
            if pid is None or int(head[1]) == pid:
                samples.append(frames)
        # On aarch64, perf finds the caller of the leaf once more, by the link register, and libdw gives it less one:
        # every C function with a frame record has its caller twice there. The second of such a pair is the one of the
        # stack.
        elif frame and frames is not None and ip != last + 1:
            last = ip
            symbol = None if frame[2] == "[unknown]" else re.sub(r"\+0x[0-9a-f]+$", "", frame[2])
            frames.append((symbol, frame[3]))
    return samples


def is_anonymous(dso):
    return re.fullmatch(r"/tmp/perf-\d+\.map|//anon|\[anon\]|\[unknown\]|anon_inode.*", dso) is not None


def check_samples(samples, is_jit, caller, at_least=100, share=0.95):
    """At least so many samples in compiled code, 99 of 100 named, and this share with the whole chain up to
    `caller`."""
    jit = [frames for frames in samples if frames and is_jit(frames[0][1])]
    named = sum(frames[0][0] is not None for frames in jit)

    def whole(frames):
        if len(frames) <= 3 or not all(frame[0] and names(frame[0], name) for frame, name in zip(frames, CHAIN)):
            return False
        outside = next((dso for _, dso in frames if not is_jit(dso)), "")
        return caller in outside

    complete = sum(map(whole, jit))
    seen = f"{len(jit)} samples in compiled code, {named} named, {complete} whole up to {caller}"
    require(len(jit) >= at_least, seen)
    require(named >= 0.99 * len(jit) and complete >= share * len(jit), seen)
    return seen


def backtrace(text):
    """The frames of the last backtrace in gdb's output."""
    frames = []
    for number, frame in re.findall(r"^#(\d+) +(?:0x[0-9a-f]+ (?:\[PAC\] )?in )?(.*)$", text, re.M):
        if int(number) == 0:
            frames = []
        frames.append(frame)
    return frames


def check_backtrace(text):
    frames = backtrace(text)
    shown = " <- ".join(re.sub(r" ?\(.*", "", frame) for frame in frames[:40])
    for index, function in enumerate(CHAIN):
        require(len(frames) > index and names(frames[index], function), f"frame {index} is not {function}: {shown}")
    require(frames[-1].startswith("_start"), f"the last frame is not _start: {shown}")
    return f"{len(frames)} frames, gamma to _start"


GDB = ["gdb", "-nx", "-batch"]
for setting in ["debuginfod enabled off", "width 0", "print frame-arguments none", "confirm off"]:
    GDB += ["-ex", f"set {setting}"]
GDB_STOPS = ["-ex", "handle SIGVTALRM stop print nopass"]


def perf_record(data, *words):
    run("perf", "record", "-q", "-e", "cpu-clock", "-B", "-N", "-o", data, *words)


def map_of(pid):
    with contextlib.suppress(FileNotFoundError):
        return [line.split(" ", 2)[2] for line in open(f"/tmp/perf-{pid}.map").read().splitlines()]
    return []


def has(entries, function):
    return any(names(entry, function) for entry in entries)


# --- scenarios --------------------------------------------------------------------------------------------------------


@scenario
def unit_tests():
    """the crates' unit tests, cross-compiled"""
    seen = []
    for binary in sorted((PAYLOAD / "unit").iterdir()):
        said = run(binary, env=environment(preload=False))
        found = re.search(r"(\d+) passed; \d+ failed", said)
        require(found, f"{binary.name}: no result")
        seen.append(f"{binary.name} {found[1]}")
    return "passed: " + ", ".join(seen)


@scenario
def tour_c():
    """tests/c/tour.c: C11, C++17 and static"""
    for binary in ["tour-c11", "tour-cpp17", "tour-static"]:
        run(PAYLOAD / "bin" / binary, env=environment(preload=False, LD_LIBRARY_PATH=str(PAYLOAD)))
    return "C11, C++17, linked statically"


@scenario
def raw_code():
    """code without LLVM, reported by the C API: perf map, perf record -g"""
    env = environment(preload=False, LD_LIBRARY_PATH=str(PAYLOAD))
    data = "/tmp/raw.data"
    perf_record(data, "-F", 499, "-g", "--", "env", f"LD_LIBRARY_PATH={PAYLOAD}", PAYLOAD / "bin/raw_jit", 3)
    samples = perf_samples(data)
    return check_samples(samples, is_anonymous, "raw_jit")


@scenario
def lli():
    """Debian's lli 19, MCJIT and ORC with JITLink: perf map, perf record -g"""
    seen = []
    for kind in (["--jit-kind=mcjit"], ["--jit-kind=orc", "--jit-linker=jitlink"]):
        env = [f"LD_PRELOAD={LIBRARY}", f"JITLISTEN_LOG=debug:{RESULTS}/jitlisten.log"]
        host = ["env", *env, "lli-19", *kind, PAYLOAD / "bin/chain.bc", 2]
        perf_record("/tmp/lli.data", "-F", 499, "-g", "--", *host)
        seen.append(f"{kind[0]}: " + check_samples(perf_samples("/tmp/lli.data"), is_anonymous, "libLLVM"))
    return "; ".join(seen)


def messages(log_file):
    """How many objects a log says were loaded, and how many were final."""
    text = log_file.read_text() if log_file.exists() else ""
    return [text.count(f"debug: {word} ObjectId(") for word in ("loaded", "finalized")]


@scenario
def linkers():
    """libLLVM 19 without its GDB JIT list, MCJIT and ORC with JITLink, one thread and four: every object is detected
    and named"""
    seen, each = [], 8
    for engine in ("mcjit", "orc"):
        for words, threads in (([], 1), (["threads"], 4)):
            host = [PAYLOAD / "bin/embedded", engine, each, *words]
            stock = run(*host, env=environment(preload=False)).strip()
            log_file = RESULTS / f"linkers-{engine}-{threads}.jitlisten.log"
            log_file.unlink(missing_ok=True)
            variables = {"JITLISTEN_LLVM": "runtimedyld,jitlink", "JITLISTEN_LOG": f"debug:{log_file}"}
            with Host(*host, "kept", env=environment(**variables)) as process:
                process.wait_for(stock)
                process.wait_for("running")
                entries, heard = map_of(process.pid), messages(log_file)
            wanted = [
                f"{function}{number}"
                for number in range(threads * each)
                for function in ("outer", "inner", "ghc", "hidden")
            ]
            lacking = [function for function in wanted if sum(names(entry, function) for entry in entries) != 1]
            seen.append(
                f"{engine} {threads}: {heard[0]} loaded, {heard[1]} final, {len(wanted) - len(lacking)} of"
                f" {len(wanted)} named"
            )
            require(heard == [threads * each] * 2 and not lacking, f"{seen[-1]}; lacking: {lacking[:5]}")
    return "; ".join(seen)


@scenario
def own_memory():
    """a program that calls mprotect and munmap itself for libLLVM 19's code: every object is detected, and freed when
    it is unmapped"""
    seen, count = [], 20
    for mode in ("protect", "moved"):
        log_file = RESULTS / f"own-memory-{mode}.jitlisten.log"
        log_file.unlink(missing_ok=True)
        with Host(
            PAYLOAD / "bin/own_memory", mode, count, env=environment(JITLISTEN_LOG=f"debug:{log_file}")
        ) as process:
            for line in ("running", "one more", "unmapped"):
                process.wait_for(line)
                heard, freed = messages(log_file), log_file.read_text().count("freeing ObjectId(")
                if line != "unmapped":
                    process.say("")
        seen.append(f"{mode}: {heard[0]} loaded, {heard[1]} final, {freed} freed")
        require(heard == [count + 1] * 2 and freed == count // 2, seen[-1])
    return "; ".join(seen)


@scenario
def unlisted():
    """llvmlite whose GDB JIT list has no symbol: Numba, and ORC with RuntimeDyld and with JITLink: perf map, perf
    record -g"""
    place, seen = pathlib.Path("/tmp/unlisted"), []
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(WHEELS / "llvmlite", place / "llvmlite")
    shutil.copy(PAYLOAD / "unlisted.so", place / "llvmlite/binding/libllvmlite.so")
    for host in (["chain.py"], ["orc.py", "rtdyld"], ["orc.py", "jitlink"]):
        log_file = RESULTS / f"unlisted-{'-'.join(host)}.jitlisten.log"
        log_file.unlink(missing_ok=True)
        env = environment(JITLISTEN_LOG=f"debug:{log_file}", PYTHONPATH=f"{place}:{WHEELS}:{PAYLOAD}/hosts")
        words = [f"{name}={env[name]}" for name in env]
        perf_record(
            "/tmp/unlisted.data", "-F", 499, "-g", "--", "env", "-i", *words, "python3", PAYLOAD / "hosts" / host[0], 2,
            *host[1:],
        )
        loaded, final = messages(log_file)
        jit = [frames for frames in perf_samples("/tmp/unlisted.data") if frames and is_anonymous(frames[0][1])]
        gamma = sum(bool(frames[0][0] and names(frames[0][0], "gamma")) for frames in jit)
        seen.append(
            f"{' '.join(host)}: {loaded} loaded, {final} final, {len(jit)} samples in compiled code, {gamma} in gamma"
        )
        require(loaded == final > 0 and len(jit) >= 100 and gamma >= 0.95 * len(jit), seen[-1])
    return "; ".join(seen)


@scenario
def detour_under_threads():
    """__jit_debug_register_code is hooked while four threads run through it, _r_debug.r_brk while two open and close"""
    library = WHEELS / "llvmlite/binding/libllvmlite.so"
    found = re.search(r"^([0-9a-f]+) \w __jit_debug_register_code$", run("nm", library), re.M)
    require(found, "no __jit_debug_register_code in llvmlite")
    seen = []
    for _ in range(5):
        said = run(PAYLOAD / "bin/through_hooks", library, found[1], LIBRARY, env=environment(preload=False))
        seen.append(int(re.search(r"passed: (\d+)", said)[1]))
    before, after = (re.search(rf"^{when}: (.*)$", said, re.M)[1] for when in ("before", "after"))
    return f"5 times; {before} became {after}; {sum(seen)} calls"


@scenario
def rules_from_code():
    """frame pointers, no unwind tables: libunwind and libgcc walk by rules read from the machine code"""
    env = environment(JITLISTEN_FRAME_POINTERS="untouched")
    return check_walks([PAYLOAD / "hosts/no_tables.py", PAYLOAD / "bin/walker.so", 2], env)


@scenario
def without_rules():
    """the control: the same without the library must not reach the start"""
    env = environment(preload=False)
    walks = walks_of([PAYLOAD / "hosts/no_tables.py", PAYLOAD / "bin/walker.so", 1], env)
    for name, samples, complete, _ in walks:
        require(samples >= 20 and complete == 0, f"{name}: {complete} of {samples} whole: the other rows prove nothing")
    return "; ".join(f"{name}: 0 of {samples} whole" for name, samples, *_ in walks)


@scenario
def numba_running():
    """one Numba process: perf record -g -p (perf map), then gdb -p"""
    with chain() as host:
        host.wait_for("running")
        perf_record("/tmp/map.data", "-F", 499, "-g", "-p", host.pid, "--", "sleep", 5)
        seen = check_samples(perf_samples("/tmp/map.data", host.pid), is_anonymous, "_dispatcher")
        for attempt in range(5):
            said = run(*GDB, "-p", host.pid, "-ex", "bt")
            frames = backtrace(said)
            if frames and names(frames[0], "gamma"):
                break
        return f"{seen}; gdb: {check_backtrace(said)}"


@scenario
def numba_images():
    """one Numba process with JITLISTEN=image: perf --call-graph dwarf, perf record -g, py-spy dump --native"""
    with chain(JITLISTEN="image") as host:
        host.wait_for("running")
        is_image = re.compile(r"/image-\d+-\d+/object-\d+\.so").search
        perf_record("/tmp/image.data", "-F", 199, "--call-graph", "dwarf,16384", "-p", host.pid, "--", "sleep", 5)
        seen = "dwarf: " + check_samples(perf_samples("/tmp/image.data", host.pid), is_image, "_dispatcher")
        perf_record("/tmp/image.data", "-F", 499, "-g", "-p", host.pid, "--", "sleep", 5)
        seen += "; fp: " + check_samples(perf_samples("/tmp/image.data", host.pid), is_image, "_dispatcher")
        whole = 0
        for _ in range(5):
            said = run("py-spy", "dump", "--native", "-p", host.pid)
            frames = re.findall(r"^    (.*) \(.*\)$", said, re.M)
            at = next((at for at, frame in enumerate(frames) if names(frame, "gamma")), None)
            ends = frames and frames[-1].startswith("<module>") or any("<module>" in frame for frame in frames)
            chain_there = at is not None and all(names(f, n) for f, n in zip(frames[at : at + 3], CHAIN))
            whole += bool(chain_there and len(frames[at:]) > 3 and ends)
        require(whole >= 4, f"py-spy shows the chain and <module> in {whole} of 5 dumps")
        return f"{seen}; py-spy: {whole} of 5 dumps whole"


@scenario
def numba_jitdump():
    """JITLISTEN=jitdump, perf record -k mono -g, perf inject --jit"""
    directory = pathlib.Path("/tmp/jitdump")
    directory.mkdir(exist_ok=True)
    env = environment(JITLISTEN="jitdump", JITLISTEN_DIR=str(directory))
    words = [f"{name}={env[name]}" for name in env]
    host = ["env", "-i", *words, "python3", PAYLOAD / "hosts/chain.py", 3]
    perf_record("/tmp/dump.data", "-k", "mono", "-F", 499, "-g", "--", *host)
    run("perf", "inject", "--jit", "-i", "/tmp/dump.data", "-o", "/tmp/dump.jit.data")
    is_jitted = re.compile(r"/jitted-\d+-\d+\.so").search
    return check_samples(perf_samples("/tmp/dump.jit.data"), is_jitted, "_dispatcher")


@scenario
def gdb_started():
    """gdb starts Numba, which stops itself in its loop"""
    variables = []
    for name, value in environment().items():
        variables += ["-ex", f"set environment {name} {value}"]
    host = ["--args", "python3", PAYLOAD / "hosts/chain.py", 100_000, "timer"]
    stop = [
        "-ex", "set startup-with-shell off", *GDB_STOPS, *variables, "-ex", "run", "-ex", "bt", "-ex", "info inferiors"
    ]
    said = run(*GDB, *stop, *host)
    seen = check_backtrace(said)
    found = re.search(r"process (\d+)", said[said.rindex("Num ") :])
    require(found and all(has(map_of(found[1]), name) for name in CHAIN), "the perf map lacks the chain")
    return f"{seen}; the perf map names the chain"


def walks_of(words, env):
    said = subprocess.run(["python3", *map(str, words)], env=env, capture_output=True, timeout=LIMIT, text=True)
    print("$ python3", *words, said.stdout, said.stderr, f"-> {said.returncode}", sep="\n", file=log, flush=True)
    require(said.returncode == 0, f"the host ends with {said.returncode}: {said.stderr.strip()[-300:]}")
    found = re.findall(r"^(libunwind|libgcc) (\d+) (\d+) (\d+)$", said.stderr, re.M)
    require(len(found) == 2, f"the walker said {said.stderr!r}")
    return [(name, int(samples), int(complete), int(frames)) for name, samples, complete, frames in found]


def check_walks(words, env):
    walks = walks_of(words, env)
    seen = "; ".join(f"{name}: {complete} of {samples} whole" for name, samples, complete, _ in walks)
    for _, samples, complete, frames in walks:
        require(
            samples >= 20 and samples == complete and frames == 3, f"{seen}; compiled frames: {[w[3] for w in walks]}"
        )
    return seen


@scenario
def numba_walked():
    """libunwind and libgcc walk from a signal handler inside Numba"""
    return check_walks([PAYLOAD / "hosts/walked.py", PAYLOAD / "bin/walker.so", 2, "early"], environment())


@scenario
def numba_forks():
    """fork: parent and child compile, each has a map of its own"""
    said = run("python3", PAYLOAD / "hosts/forks.py", env=environment())
    parent, child, status = map(int, said.split())
    require(status == 0, f"the child ends with {status}")
    of_parent, of_child = map_of(parent), map_of(child)
    require(has(of_parent, "first") and has(of_parent, "second") and not has(of_parent, "third"), f"{of_parent}")
    require(has(of_child, "first") and has(of_child, "third") and not has(of_child, "second"), f"{of_child}")
    return "each map names the common function and its own"


@scenario
def stock():
    """the control: stock Numba prints the same, and perf finds no name"""
    outputs = []
    for preload in (True, False):
        env = environment(preload=preload)
        words = [f"{name}={env[name]}" for name in env]
        host = ["env", "-i", *words, "python3", PAYLOAD / "hosts/chain.py", 2]
        print("$", *host, file=log)
        data = f"/tmp/stock-{preload}.data"
        record = ["perf", "record", "-q", "-e", "cpu-clock", "-B", "-N", "-o", data, "-F", "499", "-g", "--"]
        outputs.append(run(*record, *host))
    require(outputs[0] == outputs[1] and "running" in outputs[0], f"different output: {outputs}")
    jit = [frames for frames in perf_samples(data) if frames and is_anonymous(frames[0][1])]
    named = sum(frames[0][0] is not None for frames in jit)
    # Code without frame pointers leaves x29 alone here, so the chain goes on behind it: frames lack, and not the rest
    # of the stack.
    require(len(jit) >= 50 and named == 0, f"{len(jit)} samples, {named} named")
    return f"same output; stock: {len(jit)} samples, 0 named"


# --- recordings -------------------------------------------------------------------------------------------------------

def recorded(*words, **variables):
    """[(period, [symbol, ...]), ...] of a command that the library records, leaf first, and how many stacks it says are
    not whole."""
    data = str(RESULTS / "recorded.data")
    pathlib.Path(data).unlink(missing_ok=True)
    run(*words, env=environment(JITLISTEN_RECORD=f"{data},hz=199", **variables))
    text = run("perf", "script", "--no-inline", "--max-stack", "1024", "-F", "period,ip,sym", "-i", data)
    samples = []
    for block in text.split("\n\n"):
        head, *frames = [line for line in block.splitlines() if line.strip()] or [""]
        if frames:
            samples.append((int(head.strip().rstrip(":")), [re.sub(r"^\s*\S+ ?", "", frame) for frame in frames]))
    found = re.search(r"jitlisten.*\(.*\bincomplete (\d+)", run("perf", "report", "--header-only", "-i", data))
    return samples, int(found[1]) if found else 0


def check_recording(samples, incomplete, at_least=100):
    """At least so many stacks, and 98 % of them to the start of their thread."""
    seen = f"{len(samples)} samples, {incomplete} not whole"
    require(len(samples) >= at_least and incomplete <= 0.02 * len(samples), seen)
    return seen


def share_of(samples, function, other):
    """How much of the time of two functions one has, in percent."""
    times = {name: sum(period for period, frames in samples if name in frames) for name in (function, other)}
    return 100 * times[function] / max(sum(times.values()), 1)


@scenario
def recorded_c():
    """a C program records itself: loops of 3:1, the callers of exp, eight threads, signal handlers, 400 frames"""
    program, seen = PAYLOAD / "bin/sampled", []
    for words, pair in ((["loops", 8], ("three_of_four", "one_of_four")), (["exps", 8], ("exp_three", "exp_one"))):
        samples, incomplete = recorded(program, *words)
        share = share_of(samples, *pair)
        seen.append(f"{words[0]}: {check_recording(samples, incomplete)}, {share:.1f} %")
        require(abs(share - 75) < 6, seen[-1])
        require(
            sum(frames[-1] == "_start" for _, frames in samples) >= 0.98 * len(samples), f"{seen[-1]}; not to _start"
        )
    for words, function, least in (
        (["threads", 8, "0.5", 2], "burner", 0.9), (["handlers", 2], "main", 0.98), (["deep", 400, 2], "main", 0.98)
    ):
        samples, incomplete = recorded(program, *words)
        seen.append(f"{words[0]}: {check_recording(samples, incomplete)}")
        require(
            sum(function in frames for _, frames in samples) >= least * len(samples),
            f"{seen[-1]}; not all in {function}",
        )
    return "; ".join(seen)


@scenario
def recorded_numba():
    """a Numba process records itself: names and whole stacks"""
    samples, incomplete = recorded("python3", PAYLOAD / "hosts/chain.py", 5)
    compiled = [frames for _, frames in samples if names(frames[0], "gamma")]
    chains = sum(all(names(frame, name) for frame, name in zip(frames, CHAIN)) for frames in compiled)
    whole = sum(frames[-1] == "_start" for frames in compiled)
    seen = (
        f"{check_recording(samples, incomplete)}; {len(compiled)} in gamma, {chains} of them with its callers, {whole}"
        " to _start"
    )
    require(len(compiled) >= 100 and chains >= 0.99 * len(compiled) and whole >= 0.995 * len(compiled), seen)
    return seen


LOOPS = """
import sys, time
from numba import njit

@njit
def work(x, n):
    for _ in range(3 * n):
        x = x * 0.999 + 1.5 / (x + 2.5)  # three
    for _ in range(n):
        x = x * 0.999 + 1.5 / (x + 2.5)  # one
    return x

work(1.0, 1)
until = time.process_time() + 8
while time.process_time() < until:
    work(1.0, 100_000)
"""


@scenario
def recorded_by_command():
    """the wheel's command: jitlisten record of a Numba program, jitlisten lines of it: loops of 3:1 by line"""
    wheel = PAYLOAD / "wheel"
    if not wheel.exists():
        raise Unable("no wheel for aarch64 was built: make wheel-aarch64")
    program, data = pathlib.Path("/tmp/loops.py"), RESULTS / "command.data"
    program.write_text(LOOPS)
    env = environment(preload=False)
    env |= {"PATH": f"{wheel}/bin:{env['PATH']}", "PYTHONPATH": f"{wheel}:{WHEELS}"}
    command = wheel / "bin/jitlisten"
    run(command, "record", "-o", data, "--", "python3", program, env=env)
    run(command, "lines", data, env=env)
    report = json.loads(run(command, "lines", "--json", "-", data, env=env))
    lines = {
        line["line"]: line["self"] for file in report["files"] if file["path"] == str(program) for line in file["lines"]
    }
    three, one = (
        sum(count for number, count in lines.items() if LOOPS.splitlines()[number - 1].endswith(mark))
        for mark in ("# three", "# one")
    )
    seen = (
        f"{report['samples']} samples, {report['compiled']} in compiled code, {100 * three / max(three + one, 1):.1f} %"
        " at the line of three"
    )
    require(three + one >= 500 and abs(100 * three / (three + one) - 75) < 6, f"{seen}; {lines}")
    return seen


# ----------------------------------------------------------------------------------------------------------------------


def attempt(function):
    global log
    began = time.monotonic()
    with open(RESULTS / f"{function.__name__}.log", "w") as log:
        try:
            verdict, seen = "ok", function()
        except Failed as failed:
            verdict, seen = "FAILED", str(failed)
        except Unable as unable:
            verdict, seen = "unable", str(unable)
        except subprocess.TimeoutExpired as expired:
            verdict, seen = "FAILED", f"not at its end after {expired.timeout:.0f} s: {expired.cmd[0]}"
        except Exception as other:
            verdict, seen = "FAILED", f"{type(other).__name__}: {other}"
    seconds = time.monotonic() - began
    what, seen = (" ".join(text.split()) for text in (function.__doc__, seen))
    row = [function.__name__, what, verdict, f"{seconds:.0f}", seen[:600]]
    print("scenario:", *(row[at] for at in (0, 2, 3, 4)), sep="  ", flush=True)
    with open(RESULTS / "table.tsv", "a") as table:
        print(*row, sep="\t", file=table)
        table.flush()
        os.fsync(table.fileno())


def versions():
    wheels = sorted(path.name.removesuffix(".dist-info") for path in WHEELS.glob("*.dist-info"))
    found = [os.uname().release, sys.version.split()[0], *wheels]
    for words in (["perf", "--version"], ["gdb", "--version"], ["ldd", "--version"], ["nm", "--version"]):
        found.append(subprocess.run(words, capture_output=True, text=True).stdout.splitlines()[0])
    packages = ["libgcc-s1", "libunwind8", "libc6"]
    said = subprocess.run(["dpkg-query", "-W", *packages], capture_output=True, text=True).stdout
    return found + [line.replace("\t", " ") for line in said.splitlines()]


def main():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "versions").write_text("\n".join(versions()) + "\n")
    only = PAYLOAD / "only"
    wanted = only.read_text().split() if only.exists() else []
    for function in scenarios:
        if not wanted or function.__name__ in wanted:
            attempt(function)


main()
