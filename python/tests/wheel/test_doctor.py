"""`jitlisten doctor`."""

import json

import pytest
from conftest import PROGRAMS, command, python

KERNEL = PROGRAMS / "kernel.py"


def report(done):
    found = json.loads(done.stdout)
    tools = {tool["tool"]: tool for tool in found["tools"]}
    findings = {(finding["about"], finding["found"]) for finding in found["machine"] + found.get("program", [])}
    return tools, findings, found


def about(found, word):
    return [finding for finding in found["machine"] + found.get("program", []) if finding["about"] == word]


def test_the_machine(run):
    done = run(command(), "doctor")
    for word in ["perf", "ptrace", "gdb", "glibc", "names", "whole stacks", "lines", "perf record -g"]:
        assert word in done.stdout
    tools, _, found = report(run(command(), "doctor", "--json"))
    assert tools["py-spy --native, pystack"]["names"] and about(found, "library")


def test_a_place_that_is_no_good(run):
    tools, _, found = report(run(command(), "doctor", "--json", JITLISTEN_DIR="/nonexistent"))
    assert about(found, "images")[0]["state"] == "no" and about(found, "images")[0]["advice"]
    assert not tools["perf record --call-graph dwarf"]["stacks"]


def test_a_process_without_the_library_and_with_it(run, start):
    program = start(python(), KERNEL)
    tools, _, found = report(run(command(), "doctor", "--json", program.pid))
    assert about(found, "library")[0]["state"] == "no"
    assert not any(tool["names"] for tool in tools.values())
    assert all(tool["todo"] for tool in tools.values())
    assert "libllvmlite" in about(found, "LLVM")[0]["found"] and about(found, "Python")
    program = start(command(), "run", "--", python(), KERNEL)
    tools, _, found = report(run(command(), "doctor", "--json", program.pid))
    assert about(found, "library")[0]["state"] == "ok"
    assert tools["valgrind --tool=callgrind"]["names"]


def test_a_command_that_ends_and_one_that_does_not(run):
    short = "import time; time.sleep(2)"
    tools, _, found = report(run(command(), "doctor", "--json", "--seconds", "50", "--", python(), "-c", short))
    assert "ended" in about(found, "command")[0]["found"] and about(found, "LLVM")[0]["state"] == "note"
    tools, _, found = report(run(command(), "doctor", "--json", "--seconds", "50", "--", python(), KERNEL))
    assert "stopped" in about(found, "command")[0]["found"] and tools["py-spy --native, pystack"]["names"]
    assert "libllvmlite" in about(found, "LLVM")[0]["found"]
    assert any("can be had" in finding["found"] for finding in about(found, "frame pointers"))


def test_a_cache_without_frame_pointers(run, tmp_path):
    program = tmp_path / "cached.py"
    program.write_text("import numba\n@numba.njit(cache=True)\ndef cached(x):\n    return x + 1\ncached(1)\n")
    run(python(), program)
    # With lines, that cache would not be used.
    tools, _, found = report(run(command(), "doctor", "--json", "--seconds", "50", "--", python(), program, JITLISTEN_LINES="0"))
    assert any("cache" in finding["found"] for finding in about(found, "frame pointers"))
    assert not tools["perf record -g"]["stacks"]


def test_an_isolated_python(run):
    tools, _, found = report(run(command(), "doctor", "--json", "--seconds", "50", "--", python(), "-I", KERNEL, "once"))
    assert about(found, "lines") and not tools["gdb"]["lines"]


@pytest.mark.parametrize("words, said", [([5_000_004], "there is no process"), (["--", "no-such-command"], "not a command")])
def test_bad_input_is_one_sentence(run, words, said):
    assert said in run(command(), "doctor", *words, status=2).stderr
