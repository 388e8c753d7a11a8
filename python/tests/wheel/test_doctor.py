"""`jitlisten doctor`."""

import json
import os

from conftest import PROGRAMS, command, need, python
from spaces import Container, need_root

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


def test_each_llvm_with_version_engine_and_how_it_is_heard(run, start):
    ask = "import llvmlite.binding as b; print('.'.join(map(str, b.llvm_version_info)))"
    version = run(python(), "-c", ask).stdout.strip()
    program = start(python(), KERNEL)
    found = report(run(command(), "doctor", "--json", program.pid))[2]
    said = about(found, "LLVM")[0]["found"]
    assert f"LLVM {version}; with MCJIT" in said and "not listened to" in said
    objects = int(said.split(" objects")[0].split()[-1])
    assert objects > 0
    program = start(command(), "run", "--", python(), KERNEL)
    said = about(report(run(command(), "doctor", "--json", program.pid))[2], "LLVM")[0]["found"]
    assert "reported by a call for each object" in said
    # The library has a mapping of the file of its own, which is not where the list is.
    assert int(said.split(" objects")[0].split()[-1]) == objects


def test_an_llvm_that_puts_nothing_into_its_list(run, tmp_path):
    """JITLink does not: its linker calls us, and the images show that it has compiled."""
    module = tmp_path / "waits.ll"
    module.write_text("declare i32 @sleep(i32)\ndefine i32 @main() uwtable {\n  %x = call i32 @sleep(i32 60)\n  ret i32 %x\n}\n")
    words = [need("lli-19"), "--jit-kind=orc", "--jit-linker=jitlink", module]
    found = report(run(command(), "doctor", "--json", "--seconds", "50", "--", *words))[2]
    assert any("JITLink calls for each object" in one["found"] for one in about(found, "LLVM"))
    seconds = float(about(found, "command")[0]["found"].split()[-2])
    assert seconds < 45, "it is looked at until it has compiled, and two seconds longer"


def test_code_that_is_older_than_the_library(run, start):
    program = start(python(), KERNEL)
    run(command(), "attach", program.pid)
    tools, _, found = report(run(command(), "doctor", "--json", program.pid))
    said = about(found, "frame pointers")[0]
    assert said["state"] == "note" and "compiled functions have none" in said["found"] and "call-graph dwarf" in said["advice"]
    assert tools["perf record --call-graph dwarf"]["stacks"] and not tools["perf record -g"]["stacks"]
    assert not tools["gdb"]["lines"]


def test_lines_of_a_process(run, start):
    program = start(command(), "run", "--", python(), KERNEL)
    assert report(run(command(), "doctor", "--json", program.pid))[0]["gdb"]["lines"]
    program = start(command(), "run", "--no-lines", "--", python(), KERNEL)
    tools = report(run(command(), "doctor", "--json", program.pid))[0]
    assert not tools["gdb"]["lines"] and "--no-lines" in tools["valgrind --tool=callgrind"]["todo"]


def test_a_sink_that_failed(run, start):
    """Code cannot be mapped from a file system without exec: the image sink stops, when both places for images are on such."""
    need_root()
    lines = ["mount -t tmpfs -o noexec tmpfs /mnt", "mount -t tmpfs -o noexec tmpfs /var/tmp"]
    program = Container(start, lines=lines, words="env JITLISTEN_DIR=/mnt", run=True)
    tools, _, found = report(run(command(), "doctor", "--json", program.pid))
    assert [one["found"] for one in about(found, "sink")] == ["image: the process maps none"]
    assert tools["perf record -g"]["names"] and not tools["py-spy --native, pystack"]["names"]
    words = ["unshare", "--mount", "sh", "-c", f'{lines[0]}; {lines[1]}; exec "$@"', "sh"]
    tools, _, found = report(run(*words, command(), "doctor", "--json", "--seconds", "50", "--", python(), KERNEL, JITLISTEN_DIR="/mnt"))
    assert about(found, "images")[0]["state"] == "no" and "noexec" in about(found, "images")[0]["found"]
    assert any("the image sink stops" in one["found"] for one in about(found, "sink"))


def test_the_other_place_for_images(run):
    need_root()
    words = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o noexec tmpfs /mnt; exec "$@"', "sh"]
    tools, _, found = report(run(*words, command(), "doctor", "--json", JITLISTEN_DIR="/mnt"))
    said = about(found, "images")[0]
    assert said["state"] == "note" and "noexec" in said["found"] and "they go to /var/tmp" in said["found"]
    assert tools["py-spy --native, pystack"]["names"]


def test_tools_that_name_what_is_in_the_list_of_modules(run):
    tools = report(run(command(), "doctor", "--json"))[0]
    without = report(run(command(), "doctor", "--json", "--sinks", "perfmap,image,unwind"))[0]
    for tool in ["memray run --native", "heaptrack"]:
        assert tools[tool]["names"] and tools[tool]["stacks"]
        assert not without[tool]["names"] and without[tool]["todo"].endswith("--sinks perfmap,image,unwind,modules")
    assert tools["jitlisten record"]["names"]


def test_a_gdb_that_sees_no_compiled_code(run, tmp_path):
    """No release that is tested with has gdb 15; what this one says is what that one says."""
    gdb = tmp_path / "gdb"
    gdb.write_text("#!/bin/sh\necho 'GNU gdb (Ubuntu 15.0.50.20240403-0ubuntu1) 15.0.50.20240403-git'\n")
    gdb.chmod(0o755)
    tools, _, found = report(run(command(), "doctor", "--json", PATH=f"{tmp_path}:{os.environ['PATH']}"))
    assert about(found, "gdb")[0]["state"] == "no" and "16 and newer" in about(found, "gdb")[0]["advice"]
    assert not tools["gdb"]["names"] and "16 and newer" in tools["gdb"]["todo"]


def test_every_no_has_one_thing_to_do(run, start):
    program = start(python(), KERNEL)
    for words in [[], [program.pid]]:
        for tool in report(run(command(), "doctor", "--json", *words))[0].values():
            assert (tool["names"] and tool["stacks"] and tool["lines"]) == ("todo" not in tool)
