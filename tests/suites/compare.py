"""Runs the test suites of other projects without and with the library, and compares the failures.

    compare.py LIBRARY RESULTS_DIRECTORY SUITE [MODULE...]

SUITE is `llvmlite`, `numba`, `cpython`, `lines` (Numba's suite, with line tables in compiled code), or one of `sampled`
and `sampled-wall` (any modules, recorded at 1,000 Hz). The tests run in the interpreter that runs this script, and each
module runs in its own process. A test whose outcomes differ is repeated alone, in both configurations, up to three
times; it counts as different only if the outcomes differ each time. Tests in REQUIRE_NO_LINES and NOTICE_A_RECORDING
must differ. Prints one row of a Markdown table per module. The exit status is 1 if anything differs, or if a module ran
no test.
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

# Timeout of one module in seconds; some modules take long on a busy machine.
MODULE_TIMEOUT = float(os.environ.get("PATIENCE", "1800"))
SUITES = pathlib.Path(__file__).resolve().parent
# Options of `JITLISTEN_RECORD`, after the file name. Each forked process writes its own recording.
RECORD_OPTIONS = {"sampled": "hz=1000,children", "sampled-wall": "hz=1000,wall,children"}
PERF_RECORD_SAMPLE = 9
FAILED_OUTCOMES = ("failed", "error", "unexpected success", "died")
# Tests that require code without debug information unless `debug=True`. With line tables they must fail.
REQUIRE_NO_LINES = {
    "numba.tests.test_debuginfo.TestDebugInfo.test_environment_override",
    "numba.tests.test_debuginfo.TestDebugInfo.test_no_debuginfo_in_asm",
    # This test searches for a call at the end of a line of LLVM IR, where line tables append metadata.
    "numba.tests.test_debuginfo.TestDebugInfoEmission.test_nrt_stack_trace",
}
# Tests that a recording affects. Python 3.12 and newer warn about a fork in a multi-threaded program. A test that lists
# a child's descriptors finds two descriptors of the recorder.
NOTICE_A_RECORDING = {
    "test.test_threading.ThreadTests.test_main_thread_after_fork",
    "test.test_subprocess.POSIXProcessTestCase.test_close_fds_when_max_fd_is_lowered",
    "test.test_subprocess.POSIXProcessTestCase.test_pass_fds_redirected",
}


def list_modules(suite):
    if suite == "llvmlite":
        import llvmlite.tests

        return [
            f"llvmlite.tests.{module.name}"
            for module in pkgutil.iter_modules(llvmlite.tests.__path__)
            if module.name.startswith("test_")
        ]
    if suite == "cpython":
        return ["test.test_perf_profiler", "test.test_perfmaps"]
    raise SystemExit(f"name the modules of {suite}")


class Runs:
    """Runs tests of one suite in both configurations and stores the results."""

    def __init__(self, library, results, suite):
        self.library, self.results, self.number, self.event_count = library, results, 0, None
        self.lines, self.record_options = suite == "lines", RECORD_OPTIONS.get(suite)

    def run(self, preload, tests):
        """Returns the outcome of each test and the duration in seconds."""
        self.number += 1
        name = f"{self.number:03}-{'library' if preload else 'stock'}-{tests[0].rsplit('.', 1)[-1][:60]}"
        directory = self.results / name
        directory.mkdir(parents=True)
        # NUMBA_CACHE_DIR stays unset, because Numba's own tests look for cache files at the default path. Without
        # SUBPROC_TEST, Numba's subprocess-based test classes run no tests.
        environment = dict(os.environ, JITLISTEN_DIR=str(directory), SUBPROC_TEST="1")
        if gdb := shutil.which("gdb"):
            # Numba does not search PATH for gdb.
            environment["NUMBA_GDB_BINARY"] = gdb
        if preload:
            environment["LD_PRELOAD"] = self.library
            # The log has a line per object, which proves that the library detected the suite's code.
            environment["JITLISTEN_LOG"] = f"debug:{directory / 'log'}"
            if self.record_options:
                environment["JITLISTEN_RECORD"] = f"{directory / '%p.data'},{self.record_options}"
            if self.lines:
                package = SUITES.parent.parent / "python"
                environment["PYTHONPATH"] = f"{SUITES / 'with_lines'}:{package}"
        script = SUITES / "run_module.py"
        command = [sys.executable, str(script), str(directory / "outcomes"), *tests]
        start = time.monotonic()
        with open(directory / "output", "wb") as output:
            try:
                subprocess.run(
                    command,
                    env=environment,
                    cwd=directory,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    timeout=MODULE_TIMEOUT,
                )
            except subprocess.TimeoutExpired:
                output.write(b"\nstopped: it ran too long\n")
        if preload:
            self.event_count = count_samples(directory) if self.record_options else count_objects(directory / "log")
        return read_outcomes(directory / "outcomes"), time.monotonic() - start

    def run_both(self, tests):
        stock, stock_seconds = self.run(False, tests)
        with_library, library_seconds = self.run(True, tests)
        return stock, with_library, stock_seconds, library_seconds


def count_objects(log):
    return log.read_text(errors="replace").count(" finalized ObjectId(") if log.exists() else 0


def count_samples(directory):
    """Returns the number of samples in the recordings, and removes the recordings because they are large."""
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


def read_outcomes(path):
    outcome_by_test, running = {}, None
    lines = path.read_text().splitlines() if path.exists() else []
    for line in lines:
        kind, test = json.loads(line)
        if kind == "started":
            running = test
            continue
        # A failed subtest makes its test fail.
        if kind != "ended" and outcome_by_test.get(test) not in FAILED_OUTCOMES:
            outcome_by_test[test] = kind
        running = None
    if running:
        outcome_by_test[running] = "died"
    if not lines or json.loads(lines[-1])[0] != "ended":
        outcome_by_test["(the process did not end well)"] = "died"
    return outcome_by_test


def differing_tests(stock, with_library):
    return sorted(test for test in stock.keys() | with_library.keys() if stock.get(test) != with_library.get(test))


def agrees_when_repeated(runs, test):
    """Repeats a test alone in both configurations, up to three times; returns true as soon as the outcomes agree."""
    if test.startswith("(") or "unittest.loader" in test:
        return False
    name = test.split(" ")[0]
    return any(stock == with_library for stock, with_library, _, _ in (runs.run_both([name]) for _ in range(3)))


def main():
    library, results, suite, *modules = sys.argv[1:]
    runs = Runs(library, pathlib.Path(results), suite)
    different = 0
    for module in modules or list_modules(suite):
        stock, with_library, stock_seconds, library_seconds = runs.run_both([module])
        event_count = runs.event_count
        expected = REQUIRE_NO_LINES if suite == "lines" else NOTICE_A_RECORDING if suite in RECORD_OPTIONS else set()
        expected = expected & stock.keys()
        differing = differing_tests(stock, with_library)
        flaky = [test for test in differing if test not in expected and agrees_when_repeated(runs, test)]
        # Tests that are expected to differ but agree are reported, too.
        differing = sorted(expected.symmetric_difference(test for test in differing if test not in flaky))
        different += len(differing)
        failures = {
            name: sum(kind in FAILED_OUTCOMES for kind in run.values())
            for name, run in (("stock", stock), ("ours", with_library))
        }
        skipped = sum(kind == "skipped" for kind in stock.values())
        if skipped == len(stock):
            print(f"    {module}: no test ran", file=sys.stderr, flush=True)
            different += 1
        print(
            f"| {module} | {len(stock)} | {skipped} | {failures['stock']} | {failures['ours']} | {len(differing)}"
            f" | {len(flaky)} | {event_count} | {stock_seconds:.0f} s | {library_seconds:.0f} s |",
            flush=True,
        )
        for test in differing:
            print(
                f"    differs: {test}: {stock.get(test)} without, {with_library.get(test)} with",
                file=sys.stderr,
                flush=True,
            )
        for test in flaky:
            print(
                f"    unsteady: {test}: {stock.get(test)} without, {with_library.get(test)} with",
                file=sys.stderr,
                flush=True,
            )
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
