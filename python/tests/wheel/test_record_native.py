"""``jitlisten record -p`` with processes that are not executing Python code: native programs, and Pythons in compiled
code."""

import json

import pytest
from conftest import PROGRAMS, command, python, require_tool, wait_for


@pytest.fixture
def host(run, tmp_path):
    run("cc", "-O1", "-g", "-pthread", "-o", tmp_path / "host", PROGRAMS / "native.c")
    return tmp_path / "host"


def recorded_functions(run, recording):
    return run(require_tool("perf"), "script", "-F", "ip,sym", "-i", recording).stdout


# The main thread computes, is nearly always in ``malloc``, sleeps, is in ``pthread_join``, or runs above stale data
# that a signal handler left on the stack.
@pytest.mark.parametrize("behaviour", ["computes", "allocates", "sleeps", "joins", "handled"])
@pytest.mark.parametrize("prefix", [(), ("run", "--sinks", "unwind", "--")])
def test_a_program_is_recorded_while_it_runs(run, start, tmp_path, host, behaviour, prefix):
    program = start(*(command(), *prefix) if prefix else (), host, behaviour)
    for number in range(2):
        data = tmp_path / f"{number}.data"
        run(command(), "record", "-p", program.pid, "-d", 1, "-o", data)
        assert "burn" in recorded_functions(run, data)
    assert not program.has_ended()


def test_code_that_was_compiled_before_has_names(run, start, tmp_path):
    program = start(require_tool("lli-14"), PROGRAMS / "loops.ll")
    data = tmp_path / "f.data"
    run(command(), "record", "-p", program.pid, "-d", 1, "-o", data)
    assert "jitted_work" in run(command(), "lines", data).stdout
    result = run(command(), "attach", program.pid, "--sinks", "image", status=None)
    assert "is not Python" in result.stderr


@pytest.mark.parametrize("prefix", [(), ("run", "--")])
def test_a_python_that_stays_in_compiled_code(run, start, tmp_path, prefix):
    """Compiled code has lines only if the library was present when it was compiled."""
    program = start(*(command(), *prefix) if prefix else (), python(), PROGRAMS / "compiled.py")
    for number in range(2):
        data = tmp_path / f"{number}.data"
        result = run(command(), "record", "-p", program.pid, "-d", 1, "-o", data)
        assert "main thread is in native code" in result.stderr
        text = run(command(), "lines", data).stdout
        assert "__main__.loops" in text or "__main__.begin" in text
        assert not prefix or "total += (i % 7) * 0.5" in text
    assert not program.has_ended()


def test_a_python_that_comes_back_from_compiled_code_goes_on(start, run, tmp_path):
    """Python may still hold a cancelled request. The request's source is then empty, and its memory stays mapped."""
    program = start(python(), PROGRAMS / "compiled.py", "stop")
    run(command(), "record", "-p", program.pid, "-d", 1, "-o", "f.data")
    (tmp_path / "stop").touch()
    wait_for(lambda: program.has_printed("back in Python") or program.has_ended(), "Python")
    assert program.has_printed("back in Python") and program.process.wait() == 0


def test_options_that_are_unknown_are_named(run):
    for args in (["record", "-p", "1", "--no-such"], ["top", "-p", "1", "--no-such"], ["run", "--no-such"]):
        rejected = run(command(), *args, status=2)
        assert "unexpected argument '--no-such'" in rejected.stderr
    missing = run(command(), "record", "-p", 5_000_000, "--timeout", 1, status=2)
    assert "no such process" in missing.stderr


def test_a_main_thread_in_a_signal_handler_is_not_disturbed(run, start, tmp_path, host):
    program = start(host, "handles")
    result = run(command(), "record", "-p", program.pid, "-o", tmp_path / "f.data", status=2)
    assert "in a signal handler" in result.stderr and "start it with jitlisten record" in result.stderr
    assert not program.has_ended()


def test_threads_that_no_pthread_create_made(run, tmp_path):
    """A scan finds them in two passes of 50 ms, so that up to 0.2 s of each is missing. All counts of threads agree."""
    run("cc", "-O1", "-g", "-pthread", "-o", tmp_path / "raw", PROGRAMS / "raw_threads.c")
    for options in (), ("--wall",):
        result = run(command(), "record", *options, "-o", "raw.data", "--", tmp_path / "raw", 2)
        assert result.stdout == "done\n"
        report = json.loads(run(command(), "lines", "--json", "-", "raw.data").stdout)
        running = [thread for thread in report["threads"] if thread["tid"] != thread["pid"]]
        assert len(running) == 2, report["threads"]
        assert report["processes"][0]["threads"] == len(report["threads"])
        assert f"{len(report['threads'])} threads" in run(command(), "lines", "raw.data").stdout
        if not options:
            assert report["weight"] > 2 * 1.7e9, report["weight"]
            library = {row["name"]: row["samples"] for row in report["outside"]}
            assert library["raw"] == max(library.values()), library
