"""``jitlisten record -p`` with programs that are not Python, wherever their main thread is."""

import pytest
from conftest import PROGRAMS, command, need, python, wait_for


@pytest.fixture
def host(run, tmp_path):
    run("cc", "-O1", "-g", "-pthread", "-o", tmp_path / "host", PROGRAMS / "native.c")
    return tmp_path / "host"


def functions(run, data):
    return run(need("perf"), "script", "-F", "ip,sym", "-i", data).stdout


# In the program, in ``malloc`` nearly always, in a sleep, in the wait for a thread; without the library and with it.
# Or with what a handler has left on the stack.
@pytest.mark.parametrize("place", ["computes", "allocates", "sleeps", "joins", "handled"])
@pytest.mark.parametrize("words", [(), ("run", "--sinks", "unwind", "--")])
def test_a_program_is_recorded_while_it_runs(run, start, tmp_path, host, place, words):
    program = start(*(command(), *words) if words else (), host, place)
    for number in range(2):
        data = tmp_path / f"{number}.data"
        run(command(), "record", "-p", program.pid, "-d", 1, "-o", data)
        assert "burn" in functions(run, data)
    assert not program.has_ended()


def test_code_that_was_compiled_before_has_names(run, start, tmp_path):
    program = start(need("lli-14"), PROGRAMS / "loops.ll")
    data = tmp_path / "f.data"
    run(command(), "record", "-p", program.pid, "-d", 1, "-o", data)
    assert "jitted_work" in run(command(), "lines", data).stdout
    refused = run(command(), "attach", program.pid, "--sinks", "image", status=None)
    assert "is not Python" in refused.stderr


@pytest.mark.parametrize("words", [(), ("run", "--")])
def test_a_python_that_stays_in_compiled_code(run, start, tmp_path, words):
    """Its lines are known if the library was there when it was compiled."""
    program = start(*(command(), *words) if words else (), python(), PROGRAMS / "compiled.py")
    for number in range(2):
        data = tmp_path / f"{number}.data"
        done = run(command(), "record", "-p", program.pid, "-d", 1, "-o", data)
        assert "main thread is in native code" in done.stderr
        text = run(command(), "lines", data).stdout
        assert "__main__.loops" in text or "__main__.begin" in text
        assert not words or "total += (i % 7) * 0.5" in text
    assert not program.has_ended()


def test_a_python_that_comes_back_from_compiled_code_goes_on(start, run, tmp_path):
    """Python may still have the request, which was given up: it finds the text empty, and the memory mapped."""
    program = start(python(), PROGRAMS / "compiled.py", "stop")
    run(command(), "record", "-p", program.pid, "-d", 1, "-o", "f.data")
    (tmp_path / "stop").touch()
    wait_for(lambda: program.has_said("back in Python") or program.has_ended(), "Python")
    assert program.has_said("back in Python") and program.process.wait() == 0


def test_options_that_are_unknown_are_named(run):
    for words in (["record", "-p", "1", "--no-such"], ["top", "-p", "1", "--no-such"], ["run", "--no-such"]):
        refused = run(command(), *words, status=2)
        assert "unexpected argument '--no-such'" in refused.stderr
    none = run(command(), "record", "-p", 5_000_000, "--timeout", 1, status=2)
    assert "no such process" in none.stderr


def test_a_main_thread_in_a_signal_handler_is_not_disturbed(run, start, tmp_path, host):
    program = start(host, "handles")
    refused = run(command(), "record", "-p", program.pid, "-o", tmp_path / "f.data", status=2)
    assert "in a signal handler" in refused.stderr and "start it with jitlisten record" in refused.stderr
    assert not program.has_ended()
