"""Runs test suites that others wrote, without the library and with it, and compares what failed.

    compare.py LIBRARY RESULTS_DIRECTORY SUITE [MODULE...]

SUITE is `llvmlite`, `numba`, `lines` (Numba's, and what it compiles has line tables), `sampled` or `sampled-wall` (any
modules, which are recorded 1,000 times a second) or `cpython`; the interpreter that runs this is the one that is
tested. Each module is a process of its own. A test whose outcome differs is run again in both ways, alone, up to three
times, and counts as different only if it never agrees; those of ASK_FOR_NO_LINES and SEE_A_RECORDING have to differ.
Prints one row of a Markdown table for each module, and ends with status 1 if anything differs, or if a module ran no
test.
"""

import json
import os
import pathlib
import pkgutil
import shutil
import struct
import subprocess
import sys
import time

# Seconds for one module: on a machine that is busy, some take longer.
PATIENCE = float(os.environ.get("PATIENCE", "1800"))
SUITES = pathlib.Path(__file__).resolve().parent
#: What `JITLISTEN_RECORD` says after the file's name. Each process that is forked has a recording of its own.
SAMPLED = {"sampled": "hz=1000,children", "sampled-wall": "hz=1000,wall,children"}
PERF_RECORD_SAMPLE = 9
BAD = ("failed", "error", "unexpected success", "died")
#: Tests that ask for code without debug information, as there is none without `debug=True`. With lines they fail, and
#: have to.
ASK_FOR_NO_LINES = {
    "numba.tests.test_debuginfo.TestDebugInfo.test_environment_override",
    "numba.tests.test_debuginfo.TestDebugInfo.test_no_debuginfo_in_asm",
    # Looks for a call at the end of a line of LLVM's text.
    "numba.tests.test_debuginfo.TestDebugInfoEmission.test_nrt_stack_trace",
}
#: Tests that see a recording: Python 3.12 and newer warn of a fork in a program with threads, and a child of which the
#: test lists the descriptors has two of its own.
SEE_A_RECORDING = {
    "test.test_threading.ThreadTests.test_main_thread_after_fork",
    "test.test_subprocess.POSIXProcessTestCase.test_close_fds_when_max_fd_is_lowered",
    "test.test_subprocess.POSIXProcessTestCase.test_pass_fds_redirected",
}


def modules_of(suite):
    if suite == "llvmlite":
        import llvmlite.tests

        return [
            f"llvmlite.tests.{m.name}"
            for m in pkgutil.iter_modules(llvmlite.tests.__path__)
            if m.name.startswith("test_")
        ]
    if suite == "cpython":
        return ["test.test_perf_profiler", "test.test_perfmaps"]
    raise SystemExit(f"name the modules of {suite}")


class Runs:
    """Both ways to run tests of one suite, and where the results go."""

    def __init__(self, library, results, suite):
        self.library, self.results, self.number, self.seen = library, results, 0, None
        self.lines, self.words = suite == "lines", SAMPLED.get(suite)

    def run(self, preload, tests):
        """Outcomes by test, and the seconds it took."""
        self.number += 1
        name = f"{self.number:03}-{'library' if preload else 'stock'}-{tests[0].rsplit('.', 1)[-1][:60]}"
        directory = self.results / name
        directory.mkdir(parents=True)
        # Not NUMBA_CACHE_DIR: Numba's own tests look for their files where they are without it.
        # Numba's classes of tests in processes of their own run nothing without the second.
        environment = dict(os.environ, JITLISTEN_DIR=str(directory), SUBPROC_TEST="1")
        if gdb := shutil.which("gdb"):
            # Numba does not look for it in PATH.
            environment["NUMBA_GDB_BINARY"] = gdb
        if preload:
            environment["LD_PRELOAD"] = self.library
            # Every object is a line there: a suite under a library that sees nothing proves nothing.
            environment["JITLISTEN_LOG"] = f"debug:{directory / 'log'}"
            if self.words:
                environment["JITLISTEN_RECORD"] = f"{directory / '%p.data'},{self.words}"
            if self.lines:
                package = SUITES.parent.parent / "python"
                environment["PYTHONPATH"] = f"{SUITES / 'with_lines'}:{package}"
        script = SUITES / "run_module.py"
        words = [sys.executable, str(script), str(directory / "outcomes"), *tests]
        began = time.monotonic()
        with open(directory / "output", "wb") as output:
            try:
                subprocess.run(
                    words, env=environment, cwd=directory, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                    timeout=PATIENCE,
                )
            except subprocess.TimeoutExpired:
                output.write(b"\nstopped: it ran too long\n")
        if preload:
            self.seen = samples_in(directory) if self.words else objects_in(directory / "log")
        return outcomes(directory / "outcomes"), time.monotonic() - began

    def both(self, tests):
        stock, stock_seconds = self.run(False, tests)
        ours, our_seconds = self.run(True, tests)
        return stock, ours, stock_seconds, our_seconds


def objects_in(log):
    return log.read_text(errors="replace").count(" finalized ObjectId(") if log.exists() else 0


def samples_in(directory):
    """How many samples the recordings have; they are large, and are removed."""
    count = 0
    for recording in directory.glob("*.data*"):
        if recording.is_dir():
            shutil.rmtree(recording)
            continue
        data = recording.read_bytes()
        start, size = struct.unpack_from("<QQ", data, 40)
        end = start + size
        while start < end:
            kind, _, length = struct.unpack_from("<IHH", data, start)
            count += kind == PERF_RECORD_SAMPLE
            start += length
        recording.unlink()
    for images in directory.glob("image-*"):
        shutil.rmtree(images)
    return count


def outcomes(path):
    found, running = {}, None
    lines = path.read_text().splitlines() if path.exists() else []
    for line in lines:
        kind, test = json.loads(line)
        if kind == "started":
            running = test
            continue
        # One failed part fails the test.
        if kind != "ended" and found.get(test) not in BAD:
            found[test] = kind
        running = None
    if running:
        found[running] = "died"
    if not lines or json.loads(lines[-1])[0] != "ended":
        found["(the process did not end well)"] = "died"
    return found


def differences(stock, ours):
    return sorted(test for test in stock.keys() | ours.keys() if stock.get(test) != ours.get(test))


def again(runs, test):
    """Whether one more run of this test alone, both ways, agrees; up to three times."""
    if test.startswith("(") or "unittest.loader" in test:
        return False
    name = test.split(" ")[0]
    return any(stock == ours for stock, ours, _, _ in (runs.both([name]) for _ in range(3)))


def main():
    library, results, suite, *modules = sys.argv[1:]
    runs = Runs(library, pathlib.Path(results), suite)
    different = 0
    for module in modules or modules_of(suite):
        stock, ours, stock_seconds, our_seconds = runs.both([module])
        seen = runs.seen
        expected = ASK_FOR_NO_LINES if suite == "lines" else SEE_A_RECORDING if suite in SAMPLED else set()
        expected = expected & stock.keys()
        differ = differences(stock, ours)
        unsteady = [test for test in differ if test not in expected and again(runs, test)]
        # Those that are expected to differ and do not, too.
        differ = sorted(expected.symmetric_difference(test for test in differ if test not in unsteady))
        different += len(differ)
        bad = {name: sum(kind in BAD for kind in found.values()) for name, found in (("stock", stock), ("ours", ours))}
        skipped = sum(kind == "skipped" for kind in stock.values())
        if skipped == len(stock):
            print(f"    {module}: no test ran", file=sys.stderr, flush=True)
            different += 1
        print(
            f"| {module} | {len(stock)} | {skipped} | {bad['stock']} | {bad['ours']} | {len(differ)} | {len(unsteady)}"
            f" | {seen} | {stock_seconds:.0f} s | {our_seconds:.0f} s |",
            flush=True,
        )
        for test in differ:
            print(f"    differs: {test}: {stock.get(test)} without, {ours.get(test)} with", file=sys.stderr, flush=True)
        for test in unsteady:
            print(
                f"    unsteady: {test}: {stock.get(test)} without, {ours.get(test)} with", file=sys.stderr, flush=True
            )
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
