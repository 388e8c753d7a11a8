"""Scenarios that run inside the emulated machine, each with the real tool, and a table of their results.

The second disk contains the library, the hosts of tests/hosts, and the cross-compiled programs and test binaries. The
table (scenario, verdict, seconds, observations) is written to that disk, and the tools' output to
`results/SCENARIO.log`. If the file `only` exists, its first line names the scenarios to run.

The machine is slow, and its speed depends on the load of its host. Scenarios therefore wait for states, and timeouts
serve only to detect hangs.
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import sys
import time

PAYLOAD = pathlib.Path("/payload")
RESULTS = PAYLOAD / "results"
LIBRARY = PAYLOAD / "libjitlisten.so"
WHEELS = pathlib.Path("/opt/wheels")
CHAIN = ["gamma", "beta", "alpha"]
TOOL_TIMEOUT = 900

scenarios = []


class Failed(Exception):
    """Raised with the observation that contradicts the expectation."""


class Unable(Exception):
    """Raised with the reason if a tool of this machine is missing or does not work."""


def scenario(function):
    scenarios.append(function)
    return function


def require(condition, message):
    if not condition:
        raise Failed(message)


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


def run(*command, env=None, may_fail=False, limit=TOOL_TIMEOUT):
    """Runs a tool, logs its output, and returns its standard output; with `may_fail`, also standard error."""
    command = [str(argument) for argument in command]
    print("$", *command, file=log, flush=True)
    # The library is preloaded into the host only, never into a tool.
    result = subprocess.run(command, env=env or environment(preload=False), capture_output=True, timeout=limit)
    stdout, stderr = result.stdout.decode(errors="replace"), result.stderr.decode(errors="replace")
    print(stdout[:200_000], stderr[:20_000], f"-> {result.returncode}", sep="\n", file=log, flush=True)
    if result.returncode != 0 and not may_fail:
        raise Failed(
            f"{pathlib.Path(command[0]).name} ends with {result.returncode}: {(stderr or stdout).strip()[-300:]}"
        )
    return stdout if not may_fail else stdout + stderr


class Host:
    """A background process under test, connected through pipes."""

    def __init__(self, *command, env=None):
        self.command = [str(argument) for argument in command]
        print("$", *self.command, "&", file=log, flush=True)
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(self.command, env=env or environment(), stdin=pipe, stdout=pipe, stderr=log)
        self.pid = self.process.pid

    def wait_for(self, line):
        while True:
            output_line = self.process.stdout.readline().decode()
            if not output_line:
                raise Failed(f"the host ends with {self.process.wait()} before it says {line!r}")
            print("host:", output_line.rstrip(), file=log, flush=True)
            if output_line.strip() == line:
                return

    def send_line(self, line):
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def start_chain(*arguments, **env):
    """Starts the chain under stock Numba, which loops until it is killed."""
    return Host("python3", PAYLOAD / "hosts/chain.py", 100_000, *arguments, env=environment(**env))


# --- checks -----------------------------------------------------------------------------------------------------------


def names_function(symbol, function):
    """Returns true if the symbol contains the function's name as a whole identifier, like tests/src/symbols.rs."""
    return re.search(rf"(?<!\w){function}(?!\w)", symbol) is not None


def perf_samples(data, pid=None):
    """Parses `perf script` into [[(symbol or None, object), ...], ...], leaf first."""
    text = run("perf", "script", "--no-inline", "-F", "comm,pid,tid,ip,sym,dso", "-i", data)
    samples, frames, last_ip = [], None, 0
    for line in text.splitlines():
        header = re.match(r"\S.*?\s(\d+)/\s*\d+", line)
        frame = re.match(r"\s+([0-9a-f]+) (.*) \((.*)\)$", line)
        ip = int(frame[1], 16) if frame else 0
        if header:
            frames, last_ip = [], 0
            if pid is None or int(header[1]) == pid:
                samples.append(frames)
        # On aarch64, perf also finds the leaf's caller through the link register, and libdw subtracts one from that
        # address. The caller of every C function with a frame record is therefore listed twice; the second entry
        # belongs to the stack.
        elif frame and frames is not None and ip != last_ip + 1:
            last_ip = ip
            symbol = None if frame[2] == "[unknown]" else re.sub(r"\+0x[0-9a-f]+$", "", frame[2])
            frames.append((symbol, frame[3]))
    return samples


def is_anonymous(dso):
    return re.fullmatch(r"/tmp/perf-\d+\.map|//anon|\[anon\]|\[unknown\]|anon_inode.*", dso) is not None


def check_samples(samples, is_jit, caller, at_least=100, share=0.95):
    """Requires at least `at_least` samples in compiled code, names for 99 % of them, and the whole chain up to `caller`
    in this share of them."""
    jit = [frames for frames in samples if frames and is_jit(frames[0][1])]
    named = sum(frames[0][0] is not None for frames in jit)

    def is_whole(frames):
        if len(frames) <= 3 or not all(
            frame[0] and names_function(frame[0], name) for frame, name in zip(frames, CHAIN)
        ):
            return False
        outside = next((dso for _, dso in frames if not is_jit(dso)), "")
        return caller in outside

    complete_count = sum(map(is_whole, jit))
    summary = f"{len(jit)} samples in compiled code, {named} named, {complete_count} whole up to {caller}"
    require(len(jit) >= at_least, summary)
    require(named >= 0.99 * len(jit) and complete_count >= share * len(jit), summary)
    return summary


def parse_backtrace(text):
    """Returns the frames of the last backtrace in gdb's output."""
    frames = []
    for number, frame in re.findall(r"^#(\d+) +(?:0x[0-9a-f]+ (?:\[PAC\] )?in )?(.*)$", text, re.M):
        if int(number) == 0:
            frames = []
        frames.append(frame)
    return frames


def check_backtrace(text):
    frames = parse_backtrace(text)
    summary = " <- ".join(re.sub(r" ?\(.*", "", frame) for frame in frames[:40])
    for index, function in enumerate(CHAIN):
        require(
            len(frames) > index and names_function(frames[index], function),
            f"frame {index} is not {function}: {summary}",
        )
    require(frames[-1].startswith("_start"), f"the last frame is not _start: {summary}")
    return f"{len(frames)} frames, gamma to _start"


GDB = ["gdb", "-nx", "-batch"]
for setting in ["debuginfod enabled off", "width 0", "print frame-arguments none", "confirm off"]:
    GDB += ["-ex", f"set {setting}"]
GDB_STOP_OPTIONS = ["-ex", "handle SIGVTALRM stop print nopass"]


def perf_record(data, *words):
    run("perf", "record", "-q", "-e", "cpu-clock", "-B", "-N", "-o", data, *words)


def perf_map_names(pid):
    with contextlib.suppress(FileNotFoundError):
        return [line.split(" ", 2)[2] for line in open(f"/tmp/perf-{pid}.map").read().splitlines()]
    return []


def is_named(entries, function):
    return any(names_function(entry, function) for entry in entries)


# --- scenarios --------------------------------------------------------------------------------------------------------


@scenario
def unit_tests():
    """the crates' unit tests, cross-compiled"""
    results = []
    for binary in sorted((PAYLOAD / "unit").iterdir()):
        output = run(binary, env=environment(preload=False))
        passed = re.search(r"(\d+) passed; \d+ failed", output)
        require(passed, f"{binary.name}: no result")
        results.append(f"{binary.name} {passed[1]}")
    return "passed: " + ", ".join(results)


@scenario
def tour_c():
    """tests/c/tour.c: C11, C++17 and static"""
    for binary in ["tour-c11", "tour-cpp17", "tour-static"]:
        run(PAYLOAD / "bin" / binary, env=environment(preload=False, LD_LIBRARY_PATH=str(PAYLOAD)))
    return "C11, C++17, linked statically"


@scenario
def raw_code():
    """code without LLVM, reported by the C API: perf map, perf record -g"""
    data = "/tmp/raw.data"
    perf_record(data, "-F", 499, "-g", "--", "env", f"LD_LIBRARY_PATH={PAYLOAD}", PAYLOAD / "bin/raw_jit", 3)
    samples = perf_samples(data)
    return check_samples(samples, is_anonymous, "raw_jit")


@scenario
def lli():
    """Debian's lli 19, MCJIT and ORC with JITLink: perf map, perf record -g"""
    results = []
    for kind in (["--jit-kind=mcjit"], ["--jit-kind=orc", "--jit-linker=jitlink"]):
        env = [f"LD_PRELOAD={LIBRARY}", f"JITLISTEN_LOG=debug:{RESULTS}/jitlisten.log"]
        host = ["env", *env, "lli-19", *kind, PAYLOAD / "bin/chain.bc", 2]
        perf_record("/tmp/lli.data", "-F", 499, "-g", "--", *host)
        results.append(f"{kind[0]}: " + check_samples(perf_samples("/tmp/lli.data"), is_anonymous, "libLLVM"))
    return "; ".join(results)


def count_objects(log_file):
    """Returns the numbers of loaded and of finalized objects in a log."""
    text = log_file.read_text() if log_file.exists() else ""
    return [text.count(f"debug: {word} object ") for word in ("loaded", "finalized")]


@scenario
def linkers():
    """libLLVM 19 without its GDB JIT list, MCJIT and ORC with JITLink, one thread and four: every object is detected
    and named"""
    results, objects_per_thread = [], 8
    for engine in ("mcjit", "orc"):
        for words, threads in (([], 1), (["threads"], 4)):
            host = [PAYLOAD / "bin/embedded", engine, objects_per_thread, *words]
            stock = run(*host, env=environment(preload=False)).strip()
            log_file = RESULTS / f"linkers-{engine}-{threads}.jitlisten.log"
            log_file.unlink(missing_ok=True)
            variables = {"JITLISTEN_LLVM": "runtimedyld,jitlink", "JITLISTEN_LOG": f"debug:{log_file}"}
            with Host(*host, "kept", env=environment(**variables)) as process:
                process.wait_for(stock)
                process.wait_for("running")
                entries, object_counts = perf_map_names(process.pid), count_objects(log_file)
            expected = [
                f"{function}{number}"
                for number in range(threads * objects_per_thread)
                for function in ("outer", "inner", "ghc", "hidden")
            ]
            missing = [
                function for function in expected if sum(names_function(entry, function) for entry in entries) != 1
            ]
            results.append(
                f"{engine} {threads}: {object_counts[0]} loaded, {object_counts[1]} final,"
                f" {len(expected) - len(missing)} of {len(expected)} named"
            )
            require(
                object_counts == [threads * objects_per_thread] * 2 and not missing,
                f"{results[-1]}; lacking: {missing[:5]}",
            )
    return "; ".join(results)


@scenario
def own_memory():
    """a program that calls mprotect and munmap itself for libLLVM 19's code: every object is detected, and freed when
    it is unmapped"""
    results, count = [], 20
    for mode in ("protect", "moved"):
        log_file = RESULTS / f"own-memory-{mode}.jitlisten.log"
        log_file.unlink(missing_ok=True)
        with Host(
            PAYLOAD / "bin/own_memory", mode, count, env=environment(JITLISTEN_LOG=f"debug:{log_file}")
        ) as process:
            for line in ("running", "one more", "unmapped"):
                process.wait_for(line)
                object_counts, freed = count_objects(log_file), log_file.read_text().count("freeing object ")
                if line != "unmapped":
                    process.send_line("")
        results.append(f"{mode}: {object_counts[0]} loaded, {object_counts[1]} final, {freed} freed")
        require(object_counts == [count + 1] * 2 and freed == count // 2, results[-1])
    return "; ".join(results)


@scenario
def unlisted():
    """llvmlite whose GDB JIT list has no symbol: Numba, and ORC with RuntimeDyld and with JITLink: perf map, perf
    record -g"""
    directory, results = pathlib.Path("/tmp/unlisted"), []
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(WHEELS / "llvmlite", directory / "llvmlite")
    shutil.copy(PAYLOAD / "unlisted.so", directory / "llvmlite/binding/libllvmlite.so")
    for host in (["chain.py"], ["orc.py", "rtdyld"], ["orc.py", "jitlink"]):
        log_file = RESULTS / f"unlisted-{'-'.join(host)}.jitlisten.log"
        log_file.unlink(missing_ok=True)
        env = environment(JITLISTEN_LOG=f"debug:{log_file}", PYTHONPATH=f"{directory}:{WHEELS}:{PAYLOAD}/hosts")
        words = [f"{name}={env[name]}" for name in env]
        perf_record(
            "/tmp/unlisted.data",
            "-F",
            499,
            "-g",
            "--",
            "env",
            "-i",
            *words,
            "python3",
            PAYLOAD / "hosts" / host[0],
            2,
            *host[1:],
        )
        loaded, final = count_objects(log_file)
        jit = [frames for frames in perf_samples("/tmp/unlisted.data") if frames and is_anonymous(frames[0][1])]
        gamma = sum(bool(frames[0][0] and names_function(frames[0][0], "gamma")) for frames in jit)
        results.append(
            f"{' '.join(host)}: {loaded} loaded, {final} final, {len(jit)} samples in compiled code, {gamma} in gamma"
        )
        require(loaded == final > 0 and len(jit) >= 100 and gamma >= 0.95 * len(jit), results[-1])
    return "; ".join(results)


@scenario
def detour_under_threads():
    """__jit_debug_register_code is hooked while four threads run through it, _r_debug.r_brk while two open and close"""
    library = WHEELS / "llvmlite/binding/libllvmlite.so"
    symbol_match = re.search(r"^([0-9a-f]+) \w __jit_debug_register_code$", run("nm", library), re.M)
    require(symbol_match, "no __jit_debug_register_code in llvmlite")
    call_counts = []
    for _ in range(5):
        output = run(PAYLOAD / "bin/through_hooks", library, symbol_match[1], LIBRARY, env=environment(preload=False))
        call_counts.append(int(re.search(r"passed: (\d+)", output)[1]))
    before, after = (re.search(rf"^{when}: (.*)$", output, re.M)[1] for when in ("before", "after"))
    return f"5 times; {before} became {after}; {sum(call_counts)} calls"


@scenario
def rules_from_code():
    """frame pointers, no unwind tables: libunwind and libgcc walk by rules read from the machine code"""
    env = environment(JITLISTEN_FRAME_POINTERS="untouched")
    return check_walks([PAYLOAD / "hosts/no_tables.py", PAYLOAD / "bin/walker.so", 2], env)


@scenario
def without_rules():
    """the control: the same without the library must not reach the start"""
    env = environment(preload=False)
    walks = run_walker([PAYLOAD / "hosts/no_tables.py", PAYLOAD / "bin/walker.so", 1], env)
    for name, samples, complete, _ in walks:
        require(samples >= 20 and complete == 0, f"{name}: {complete} of {samples} whole: the other rows prove nothing")
    return "; ".join(f"{name}: 0 of {samples} whole" for name, samples, *_ in walks)


@scenario
def numba_running():
    """one Numba process: perf record -g -p (perf map), then gdb -p"""
    with start_chain() as host:
        host.wait_for("running")
        perf_record("/tmp/map.data", "-F", 499, "-g", "-p", host.pid, "--", "sleep", 5)
        summary = check_samples(perf_samples("/tmp/map.data", host.pid), is_anonymous, "_dispatcher")
        for _ in range(5):
            output = run(*GDB, "-p", host.pid, "-ex", "bt")
            frames = parse_backtrace(output)
            if frames and names_function(frames[0], "gamma"):
                break
        return f"{summary}; gdb: {check_backtrace(output)}"


@scenario
def numba_images():
    """one Numba process with JITLISTEN=image: perf --call-graph dwarf, perf record -g, py-spy dump --native"""
    with start_chain(JITLISTEN="image") as host:
        host.wait_for("running")
        is_image = re.compile(r"/image-\d+-\d+/object-\d+\.so").search
        perf_record("/tmp/image.data", "-F", 199, "--call-graph", "dwarf,16384", "-p", host.pid, "--", "sleep", 5)
        summary = "dwarf: " + check_samples(perf_samples("/tmp/image.data", host.pid), is_image, "_dispatcher")
        perf_record("/tmp/image.data", "-F", 499, "-g", "-p", host.pid, "--", "sleep", 5)
        summary += "; fp: " + check_samples(perf_samples("/tmp/image.data", host.pid), is_image, "_dispatcher")
        whole_count = 0
        for _ in range(5):
            output = run("py-spy", "dump", "--native", "-p", host.pid)
            frames = re.findall(r"^    (.*) \(.*\)$", output, re.M)
            leaf = next((index for index, frame in enumerate(frames) if names_function(frame, "gamma")), None)
            has_module = frames and frames[-1].startswith("<module>") or any("<module>" in frame for frame in frames)
            has_chain = leaf is not None and all(
                names_function(frame, name) for frame, name in zip(frames[leaf : leaf + 3], CHAIN)
            )
            whole_count += bool(has_chain and len(frames[leaf:]) > 3 and has_module)
        require(whole_count >= 4, f"py-spy shows the chain and <module> in {whole_count} of 5 dumps")
        return f"{summary}; py-spy: {whole_count} of 5 dumps whole"


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
        "-ex",
        "set startup-with-shell off",
        *GDB_STOP_OPTIONS,
        *variables,
        "-ex",
        "run",
        "-ex",
        "bt",
        "-ex",
        "info inferiors",
    ]
    output = run(*GDB, *stop, *host)
    summary = check_backtrace(output)
    pid_match = re.search(r"process (\d+)", output[output.rindex("Num ") :])
    require(
        pid_match and all(is_named(perf_map_names(pid_match[1]), name) for name in CHAIN),
        "the perf map lacks the chain",
    )
    return f"{summary}; the perf map names the chain"


def run_walker(words, env):
    result = subprocess.run(
        ["python3", *map(str, words)], env=env, capture_output=True, timeout=TOOL_TIMEOUT, text=True
    )
    print("$ python3", *words, result.stdout, result.stderr, f"-> {result.returncode}", sep="\n", file=log, flush=True)
    require(result.returncode == 0, f"the host ends with {result.returncode}: {result.stderr.strip()[-300:]}")
    rows = re.findall(r"^(libunwind|libgcc) (\d+) (\d+) (\d+)$", result.stderr, re.M)
    require(len(rows) == 2, f"the walker said {result.stderr!r}")
    return [(name, int(samples), int(complete), int(frames)) for name, samples, complete, frames in rows]


def check_walks(words, env):
    walks = run_walker(words, env)
    summary = "; ".join(f"{name}: {complete} of {samples} whole" for name, samples, complete, _ in walks)
    for _, samples, complete, frames in walks:
        require(
            samples >= 20 and samples == complete and frames == 3,
            f"{summary}; compiled frames: {[walk[3] for walk in walks]}",
        )
    return summary


@scenario
def numba_walked():
    """libunwind and libgcc walk from a signal handler inside Numba"""
    return check_walks([PAYLOAD / "hosts/walked.py", PAYLOAD / "bin/walker.so", 2, "early"], environment())


@scenario
def numba_forks():
    """fork: parent and child compile, each has a map of its own"""
    output = run("python3", PAYLOAD / "hosts/forks.py", env=environment())
    parent, child, status = map(int, output.split())
    require(status == 0, f"the child ends with {status}")
    parent_names, child_names = perf_map_names(parent), perf_map_names(child)
    require(
        is_named(parent_names, "first") and is_named(parent_names, "second") and not is_named(parent_names, "third"),
        f"{parent_names}",
    )
    require(
        is_named(child_names, "first") and is_named(child_names, "third") and not is_named(child_names, "second"),
        f"{child_names}",
    )
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
    # On aarch64, code without frame pointers leaves x29 unchanged. The frame-pointer chain continues beyond that code,
    # so a stack lacks only the frames of that code.
    require(len(jit) >= 50 and named == 0, f"{len(jit)} samples, {named} named")
    return f"same output; stock: {len(jit)} samples, 0 named"


# --- recordings -------------------------------------------------------------------------------------------------------


def record(*words, **variables):
    """Records a command with the library. Returns [(period, [symbol, ...]), ...], leaf first, and the number of stacks
    that the recording reports as incomplete."""
    data = str(RESULTS / "recorded.data")
    pathlib.Path(data).unlink(missing_ok=True)
    run(*words, env=environment(JITLISTEN_RECORD=f"{data},hz=199", **variables))
    text = run("perf", "script", "--no-inline", "--max-stack", "1024", "-F", "period,ip,sym", "-i", data)
    samples = []
    for block in text.split("\n\n"):
        header, *frames = [line for line in block.splitlines() if line.strip()] or [""]
        if frames:
            samples.append((int(header.strip().rstrip(":")), [re.sub(r"^\s*\S+ ?", "", frame) for frame in frames]))
    return samples, incomplete_stacks(pathlib.Path(data).read_bytes())


def incomplete_stacks(data):
    """Returns the recorder's counter of incomplete stacks (wire/src/counters.rs). The counters are the section of the
    last feature in the table after the data."""
    offset, size, *bits = struct.unpack_from("<2Q16x4Q", data, 40)
    features = sum(bin(word).count("1") for word in bits)
    (counters,) = struct.unpack_from("<Q", data, offset + size + 16 * (features - 1))
    return struct.unpack_from("<2Q", data, counters)[1]


def check_recording(samples, incomplete, at_least=100):
    """Requires enough stacks, and that 98 % of them reach the entry function of their thread."""
    summary = f"{len(samples)} samples, {incomplete} not whole"
    require(len(samples) >= at_least and incomplete <= 0.02 * len(samples), summary)
    return summary


def share_of(samples, function, other):
    """Returns the share of one function in the time of two functions, in percent."""
    times = {name: sum(period for period, frames in samples if name in frames) for name in (function, other)}
    return 100 * times[function] / max(sum(times.values()), 1)


@scenario
def recorded_c():
    """a C program records itself: loops of 3:1, the callers of exp, eight threads, signal handlers, 400 frames"""
    program, results = PAYLOAD / "bin/sampled", []
    for words, pair in ((["loops", 8], ("three_of_four", "one_of_four")), (["exps", 8], ("exp_three", "exp_one"))):
        samples, incomplete = record(program, *words)
        share = share_of(samples, *pair)
        results.append(f"{words[0]}: {check_recording(samples, incomplete)}, {share:.1f} %")
        require(abs(share - 75) < 6, results[-1])
        require(
            sum(frames[-1] == "_start" for _, frames in samples) >= 0.98 * len(samples), f"{results[-1]}; not to _start"
        )
    for words, function, min_share in (
        (["threads", 8, "0.5", 2], "burn_and_report", 0.9),
        (["handlers", 2], "main", 0.98),
        (["deep", 400, 2], "main", 0.98),
    ):
        samples, incomplete = record(program, *words)
        results.append(f"{words[0]}: {check_recording(samples, incomplete)}")
        require(
            sum(function in frames for _, frames in samples) >= min_share * len(samples),
            f"{results[-1]}; not all in {function}",
        )
    return "; ".join(results)


@scenario
def recorded_numba():
    """a Numba process records itself: names and whole stacks"""
    samples, incomplete = record("python3", PAYLOAD / "hosts/chain.py", 5)
    compiled = [frames for _, frames in samples if names_function(frames[0], "gamma")]
    chain_count = sum(all(names_function(frame, name) for frame, name in zip(frames, CHAIN)) for frames in compiled)
    whole_count = sum(frames[-1] == "_start" for frames in compiled)
    summary = (
        f"{check_recording(samples, incomplete)}; {len(compiled)} in gamma, {chain_count} of them with its callers,"
        f" {whole_count} to _start"
    )
    require(
        len(compiled) >= 100 and chain_count >= 0.99 * len(compiled) and whole_count >= 0.995 * len(compiled), summary
    )
    return summary


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


def wheel_command():
    """Returns the wheel's command, and the environment in which Python finds the wheel."""
    wheel = PAYLOAD / "wheel"
    if not wheel.exists():
        raise Unable("no wheel for aarch64 was built: make wheel-aarch64")
    env = environment(preload=False)
    return wheel / "bin/jitlisten", env | {
        "PATH": f"{wheel}/bin:{WHEELS}/bin:{env['PATH']}",
        "PYTHONPATH": f"{wheel}:{WHEELS}",
    }


@scenario
def recorded_by_command():
    """the wheel's command: record of a Numba program, then lines and why: loops of 3:1 by line, and why one is slow"""
    command, env = wheel_command()
    program, data = pathlib.Path("/tmp/loops.py"), RESULTS / "command.data"
    program.write_text(LOOPS)
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
    summary = (
        f"{report['samples']} samples, {report['compiled']} in compiled code, {100 * three / max(three + one, 1):.1f} %"
        " at the line of three"
    )
    require(three + one >= 500 and abs(100 * three / (three + one) - 75) < 6, f"{summary}; {lines}")
    number = next(number for number, text in enumerate(LOOPS.splitlines(), 1) if text.endswith("# three"))
    reason = run(command, "why", f"{program}:{number}", data, env=env)
    require("one value at a time" in reason and "fdiv" in reason, reason)
    return f"{summary}; why: one value at a time, fdiv"


COVERED = """
from numba import njit

@njit
def positive(values):
    count = 0
    for value in values:
        if value > 0:
            count += 1
        elif value < -10:
            count -= 1  # never
    return count

import numpy as np
print(positive(np.array([1.0, -1.0, 2.0])))
"""


@scenario
def covered():
    """coverage of compiled code: lines and branches that ran, beside those of the same program run as Python"""
    command, env = wheel_command()
    program = pathlib.Path("/tmp/covered.py")
    program.write_text(COVERED)
    reports = []
    for prefix, variables in (([command, "coverage", "--"], {}), ([], {"NUMBA_DISABLE_JIT": "1"})):
        output = f"/tmp/coverage-{len(reports)}.json"
        variables = env | variables | {"COVERAGE_FILE": f"{output}.data"}
        run(*prefix, "python3", "-m", "coverage", "run", "--branch", program, env=variables)
        run("python3", "-m", "coverage", "json", "-q", "-o", output, program, env=variables)
        (file,) = json.loads(pathlib.Path(output).read_text())["files"].values()
        reports.append({name: file[name] for name in ("executed_lines", "missing_lines", "executed_branches")})
    compiled, interpreted = reports
    require(compiled == interpreted, f"compiled: {compiled}; interpreted: {interpreted}")
    never = next(number for number, text in enumerate(COVERED.splitlines(), 1) if text.endswith("# never"))
    require(compiled["missing_lines"] == [never], compiled)
    return f"{len(compiled['executed_lines'])} lines and {len(compiled['executed_branches'])} branches as in Python"


@scenario
def attached():
    """attach to a running Numba program, and record -p of it: names and samples"""
    command, env = wheel_command()
    program, data = pathlib.Path("/tmp/attached.py"), RESULTS / "attached.data"
    program.write_text(LOOPS.replace("+ 8", "+ 600\nprint('ready', flush=True)"))
    with Host("python3", program, env=env) as host:
        host.wait_for("ready")
        reply = run(command, "attach", "--timeout", 60, host.pid, env=env)
        names = pathlib.Path(f"/tmp/perf-{host.pid}.map").read_text()
        require("sinks on:" in reply and "work" in names, f"{reply}; {names}")
        run(command, "record", "-p", host.pid, "-o", data, "--duration", 10, env=env)
        require(host.process.poll() is None, "the program ended")
    report = json.loads(run(command, "lines", "--json", "-", data, env=env))
    require(report["compiled"] >= 0.8 * report["samples"] >= 400, report)
    return f"{report['samples']} samples, {report['compiled']} in compiled code"


# ----------------------------------------------------------------------------------------------------------------------


def run_scenario(function):
    global log
    start = time.monotonic()
    with open(RESULTS / f"{function.__name__}.log", "w") as log:
        try:
            verdict, summary = "ok", function()
        except Failed as failed:
            verdict, summary = "FAILED", str(failed)
        except Unable as unable:
            verdict, summary = "unable", str(unable)
        except subprocess.TimeoutExpired as expired:
            verdict, summary = "FAILED", f"not at its end after {expired.timeout:.0f} s: {expired.cmd[0]}"
        except Exception as other:
            verdict, summary = "FAILED", f"{type(other).__name__}: {other}"
    seconds = time.monotonic() - start
    description, summary = (" ".join(text.split()) for text in (function.__doc__, summary))
    row = [function.__name__, description, verdict, f"{seconds:.0f}", summary[:600]]
    print("scenario:", *(row[column] for column in (0, 2, 3, 4)), sep="  ", flush=True)
    with open(RESULTS / "table.tsv", "a") as table:
        print(*row, sep="\t", file=table)
        table.flush()
        os.fsync(table.fileno())


def read_versions():
    wheels = sorted(path.name.removesuffix(".dist-info") for path in WHEELS.glob("*.dist-info"))
    lines = [os.uname().release, sys.version.split()[0], *wheels]
    for words in (["perf", "--version"], ["gdb", "--version"], ["ldd", "--version"], ["nm", "--version"]):
        lines.append(subprocess.run(words, capture_output=True, text=True).stdout.splitlines()[0])
    packages = ["libgcc-s1", "libunwind8", "libc6"]
    dpkg_output = subprocess.run(["dpkg-query", "-W", *packages], capture_output=True, text=True).stdout
    return lines + [line.replace("\t", " ") for line in dpkg_output.splitlines()]


def main():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "versions").write_text("\n".join(read_versions()) + "\n")
    only = PAYLOAD / "only"
    selected = only.read_text().split() if only.exists() else []
    for function in scenarios:
        if not selected or function.__name__ in selected:
            run_scenario(function)


main()
