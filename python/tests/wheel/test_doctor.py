"""`jitlisten doctor`."""

import json
import os
import pathlib
import signal
import subprocess

import pytest

from conftest import PROGRAMS, command, need, python, wait_for
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
    [said] = about(found, "remarks")
    assert said["state"] == "ok" and int(said["found"].rpartition(": ")[2]) > 0, said
    program = start(command(), "run", "--sinks", "perfmap", "--", python(), KERNEL)
    _, _, found = report(run(command(), "doctor", "--json", program.pid))
    assert not about(found, "remarks"), "without images nothing carries them"


def test_a_command_that_ends_and_one_that_does_not(run):
    short = "import time; time.sleep(2)"
    tools, _, found = report(run(command(), "doctor", "--json", "--seconds", "50", "--", python(), "-c", short))
    assert "ended" in about(found, "command")[0]["found"] and about(found, "LLVM")[0]["state"] == "note"
    tools, _, found = report(run(command(), "doctor", "--json", "--seconds", "50", "--", python(), KERNEL))
    assert "stopped" in about(found, "command")[0]["found"] and tools["py-spy --native, pystack"]["names"]
    assert "libllvmlite" in about(found, "LLVM")[0]["found"]
    assert any("enabled" in finding["found"] for finding in about(found, "frame pointers"))


@pytest.mark.parametrize(
    "then", ["", "import time; time.sleep(5)"], ids=["it ends at once", "it is looked at while it runs"]
)
def test_a_cache_without_frame_pointers(run, tmp_path, then):
    program = tmp_path / "cached.py"
    program.write_text(f"import numba\n@numba.njit(cache=True)\ndef cached(x):\n    return x + 1\ncached(1)\n{then}\n")
    run(python(), program)
    # With lines, that cache would not be used.
    tools, _, found = report(
        run(command(), "doctor", "--json", "--seconds", "50", "--", python(), program, JITLISTEN_LINES="0")
    )
    causes = [finding for finding in about(found, "frame pointers") if "omit --no-lines" in finding.get("advice", "")]
    assert len(causes) == 1 and "libllvmlite.so: code without frame pointers was loaded, first " in causes[0]["found"]
    assert not tools["perf record -g"]["stacks"]


def test_an_isolated_python(run):
    tools, _, found = report(
        run(command(), "doctor", "--json", "--seconds", "50", "--", python(), "-I", KERNEL, "once")
    )
    assert about(found, "lines") and not tools["gdb"]["lines"]


def test_each_llvm_with_version_engine_and_how_it_is_heard(run, start):
    ask = "import llvmlite.binding as b; print('.'.join(map(str, b.llvm_version_info)))"
    version = run(python(), "-c", ask).stdout.strip()
    program = start(python(), KERNEL)
    found = report(run(command(), "doctor", "--json", program.pid))[2]
    said = about(found, "LLVM")[0]["found"]
    assert f"LLVM {version}; with MCJIT" in said and "not observed" in said
    objects = int(said.split(" objects")[0].split()[-1])
    assert objects > 0
    program = start(command(), "run", "--", python(), KERNEL)
    said = about(report(run(command(), "doctor", "--json", program.pid))[2], "LLVM")[0]["found"]
    assert "GDB JIT list is hooked" in said
    # The library has a mapping of the file of its own, which is not where the list is.
    assert int(said.split(" objects")[0].split()[-1]) == objects


def test_an_llvm_that_puts_nothing_into_its_list(run, tmp_path):
    """JITLink does not: its linker calls us, and the images show that it has compiled."""
    module = tmp_path / "waits.ll"
    module.write_text(
        "declare i32 @sleep(i32)\ndefine i32 @main() uwtable {\n  %x = call i32 @sleep(i32 60)\n  ret i32 %x\n}\n"
    )
    words = [need("lli-19"), "--jit-kind=orc", "--jit-linker=jitlink", module]
    found = report(run(command(), "doctor", "--json", "--seconds", "50", "--", *words))[2]
    assert any("JITLink is hooked" in one["found"] for one in about(found, "LLVM"))
    seconds = float(about(found, "command")[0]["found"].split()[-2])
    assert seconds < 45, "it is looked at until it has compiled, and two seconds longer"


def llvm_in(run, pid, name):
    """What is found of the LLVM in such a file."""
    found = report(run(command(), "doctor", "--json", pid))[2]
    [llvm] = [one for one in about(found, "LLVM") if name in one["found"].split(": ")[0]]
    return llvm, found


def test_objects_of_jitlink_in_a_process(run, start, tmp_path):
    """llvmlite's own, which puts nothing into the GDB JIT list."""
    hosts = pathlib.Path(__file__).parents[3] / "tests" / "hosts"
    program = tmp_path / "linked.py"
    program.write_text(f"import sys\nsys.path.insert(0, {str(hosts)!r})\nsys.argv[1:] = ['0', 'jitlink']\nimport orc\n"
                       "print('ready', flush=True)\nimport time\ntime.sleep(600)\n")
    program = start(command(), "run", "--", python(), "-B", program)
    llvm, found = llvm_in(run, program.pid, "libllvmlite")
    assert "JITLink is hooked, objects so far: 1" in llvm["found"] and llvm["state"] == "ok"
    # Its images have no padding in front, so perf cannot use their unwind tables.
    assert "no padding" in about(found, "images")[1]["found"]
    tools = {tool["tool"]: tool for tool in found["tools"]}
    assert not tools["perf record --call-graph dwarf"]["stacks"] and tools["py-spy --native, pystack"]["stacks"]


@pytest.fixture(scope="module")
def embedded(tmp_path_factory):
    """Programs with an LLVM 19 of their own: stripped, and stripped without names of types in it."""
    place = tmp_path_factory.mktemp("embedded")
    source = pathlib.Path(__file__).parents[3] / "tests" / "hosts" / "embedded.c"
    config = need("llvm-config-19")
    ask = lambda *words: subprocess.run([config, *words], check=True, capture_output=True, text=True).stdout.split()
    libraries = ask("--link-static", "--libs", "orcjit", "mcjit", "x86", "irreader") + ask(
        "--link-static", "--system-libs"
    )
    flags = ["-O1", "-DOLD_CONTEXTS", "-Wl,--gc-sections", "-s", f"-L{ask('--libdir')[0]}"]
    stripped = place / "stripped"
    subprocess.run([need("cc"), *flags, source, *libraries, "-lstdc++", "-pthread", "-ldl", "-o", stripped], check=True)
    nameless = place / "nameless"
    bytes = stripped.read_bytes()
    for name in [
        b"14RuntimeDyldELFE", b"18RuntimeDyldELFMipsE", b"19RuntimeDyldCOFFI386E", b"3orc18ObjectLinkingLayerE"
    ]:
        assert b"N4llvm" + name + b"\0" in bytes
        bytes = bytes.replace(b"N4llvm" + name + b"\0", b"X" * (6 + len(name)) + b"\0")
    nameless.write_bytes(bytes)
    nameless.chmod(0o755)
    return {"stripped": stripped, "nameless": nameless}


@pytest.fixture
def kept(environment):
    """Starts a program that waits for its standard input when it has compiled."""
    running = []

    def kept(*words):
        process = subprocess.Popen(
            [str(word) for word in words], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        running.append(process)
        assert any(line == "running\n" for line in process.stdout)
        return process.pid

    yield kept
    for process in running:
        process.communicate("\n")


def test_a_stripped_program_with_an_llvm_of_its_own(run, embedded, kept):
    host = embedded["stripped"]
    for words in [], [command(), "run", "--"]:
        llvm, found = llvm_in(run, kept(*words, host, "mcjit", "5", "kept"), "/stripped")
        assert "LLVM 19.1." in llvm["found"] and "with MCJIT" in llvm["found"]
        if words:
            assert "RuntimeDyld is hooked, objects so far: 5" in llvm["found"] and llvm["state"] == "ok"
            assert "missing: frame pointers" in llvm["found"]
            assert "compiled functions keep no frame pointer" in about(found, "frame pointers")[0]["found"]
            assert not next(tool for tool in found["tools"] if tool["tool"] == "perf record -g")["stacks"]
        else:
            assert "not observed" in llvm["found"]
    # JITLink links what LLJIT of this release compiles.
    llvm, _ = llvm_in(run, kept(command(), "run", "--", host, "orc", "5", "kept"), "/stripped")
    assert "JITLink is hooked, objects so far: 5" in llvm["found"]
    found = report(run(command(), "doctor", "--json", "--seconds", "50", "--", host, "mcjit", "300", "threads"))[2]
    assert (
        len([one for one in about(found, "LLVM") if "/stripped" in one["found"] or "the program" in one["found"]]) == 1
    )


def test_a_process_in_start_up(environment, embedded):
    """What compiles only after the first look is seen by the second."""
    words = ["sh", "-c", f"read line; exec {embedded['stripped']} mcjit 5 kept"]
    pipes = dict(env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with subprocess.Popen([command(), "run", "--", *words], **pipes) as host:
        with subprocess.Popen([command(), "doctor", "--json", str(host.pid)], **pipes) as doctor:
            where = pathlib.Path(f"/proc/{doctor.pid}/wchan")
            wait_for(lambda: doctor.poll() is not None or "nanosleep" in where.read_text(), "the first look")
            assert doctor.poll() is None, "it has looked once"
            doctor.send_signal(signal.SIGSTOP)
            host.stdin.write("\n")
            host.stdin.flush()
            assert any(line == "running\n" for line in host.stdout)
            doctor.send_signal(signal.SIGCONT)
            found = json.loads(doctor.communicate()[0])
        host.communicate("\n")
    [llvm] = about(found, "LLVM")
    assert "/stripped" in llvm["found"] and "objects so far: 5" in llvm["found"], llvm


def test_an_llvm_of_which_nothing_is_heard(run, embedded, kept):
    """It has neither symbols nor RTTI."""
    for words in [], [command(), "run", "--"]:
        llvm, _ = llvm_in(run, kept(*words, embedded["nameless"], "mcjit", "2", "kept"), "/nameless")
        assert "LLVM 19.1." in llvm["found"] and "not observed" in llvm["found"]
        if words:
            assert (
                llvm["state"] == "no"
                and "neither symbols nor RTTI" in llvm["found"]
                and "docs/limits.md" in llvm["advice"]
            )
    found = report(
        run(command(), "doctor", "--json", "--seconds", "50", "--", embedded["nameless"], "mcjit", "300", "threads")
    )[2]
    assert [one["state"] for one in about(found, "LLVM")] == ["no"]


def test_no_llvm(run, start):
    program = start(command(), "run", "--", python(), "-c", "import time; print('ready', flush=True); time.sleep(600)")
    [finding] = about(report(run(command(), "doctor", "--json", program.pid))[2], "LLVM")
    assert finding["found"] == "no LLVM in the process"


def test_code_that_is_older_than_the_library(run, start):
    program = start(python(), KERNEL)
    run(command(), "attach", program.pid)
    tools, _, found = report(run(command(), "doctor", "--json", program.pid))
    said = about(found, "frame pointers")[0]
    assert (
        said["state"] == "note"
        and "compiled functions keep no frame pointer" in said["found"]
        and "jitlisten record" in said["advice"]
    )
    # There was no padding in front of it yet, so perf cannot use its unwind tables either.
    assert not tools["perf record --call-graph dwarf"]["stacks"] and not tools["perf record -g"]["stacks"]
    assert tools["jitlisten record"]["stacks"] and tools["py-spy --native, pystack"]["stacks"]
    assert not tools["gdb"]["lines"]


def test_lines_of_some_functions(run, start, tmp_path):
    program = start(python(), KERNEL, "later")
    run(command(), "attach", program.pid)
    (tmp_path / "go").touch()
    wait_for(lambda: program.has_said("compiled"), "the second function")
    tools, _, found = report(run(command(), "doctor", "--json", program.pid))
    [said] = about(found, "lines")
    without, all = (int(word) for word in said["found"].split() if word.isdigit())
    assert said["state"] == "note" and 0 < without < all, said
    assert not tools["gdb"]["lines"] and tools["gdb"]["todo"] == "some code has no lines, see above"
    assert "   some  " in run(command(), "doctor", program.pid).stdout


def test_nothing_is_compiled_yet(run, start):
    code = "import numba, time; print('ready', flush=True); time.sleep(600)"
    found = report(run(command(), "doctor", "--json", start(command(), "run", "--", python(), "-c", code).pid))[2]
    assert not about(found, "sink") and not about(found, "lines")


def test_lines_of_a_process(run, start):
    program = start(command(), "run", "--", python(), KERNEL)
    tools, _, found = report(run(command(), "doctor", "--json", program.pid))
    assert tools["gdb"]["lines"] and not about(found, "lines")
    program = start(command(), "run", "--no-lines", "--", python(), KERNEL)
    tools = report(run(command(), "doctor", "--json", program.pid))[0]
    assert not tools["gdb"]["lines"] and "--no-lines" in tools["valgrind --tool=callgrind"]["todo"]


def test_a_sink_that_failed(run, start):
    """Code cannot be mapped from a file system without exec: the image sink stops, when both places for images are on
    such."""
    need_root()
    lines = ["mount -t tmpfs -o noexec tmpfs /mnt", "mount -t tmpfs -o noexec tmpfs /var/tmp"]
    program = Container(start, lines=lines, words="env JITLISTEN_DIR=/mnt", run=True)
    tools, _, found = report(run(command(), "doctor", "--json", program.pid))
    assert [one["found"] for one in about(found, "sink")] == ["image: nothing was compiled yet, or images failed"]
    assert tools["perf record -g"]["names"] and not tools["py-spy --native, pystack"]["names"]
    words = ["unshare", "--mount", "sh", "-c", f'{lines[0]}; {lines[1]}; exec "$@"', "sh"]
    tools, _, found = report(
        run(*words, command(), "doctor", "--json", "--seconds", "50", "--", python(), KERNEL, JITLISTEN_DIR="/mnt")
    )
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


@pytest.mark.parametrize("trap", ["mkfifo {0}.log", "ln -s /dev/zero {0}.log"])
def test_nobody_can_foresee_the_name_of_its_log(run, tmp_path, trap):
    place = tmp_path / "tmp"
    place.mkdir()
    line = trap.format("$TMPDIR/jitlisten-doctor-$$") + '; exec "$@"'
    words = ["sh", "-c", line, "sh", command(), "doctor", "--", python(), "-c", "pass"]
    assert "command" in run(*words, TMPDIR=place, status=None, timeout=120).stdout
    assert len(list(place.iterdir())) == 1, "its own directory is gone"


def test_a_signal_ends_it_and_leaves_nothing(environment, tmp_path):
    place = tmp_path / "tmp"
    place.mkdir()
    program = "import os, time; print(os.getpid(), file=open('pid', 'w'), flush=True); time.sleep(600)"
    doctor = subprocess.Popen(
        [command(), "doctor", "--seconds", "500", "--", python(), "-c", program],
        env={**environment, "TMPDIR": str(place)}, cwd=tmp_path, stdout=subprocess.PIPE, text=True,
    )
    wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "the program")
    assert len(list(place.iterdir())) == 1
    doctor.terminate()
    doctor.communicate(timeout=60)
    assert list(place.iterdir()) == []
    assert not os.path.exists("/proc/" + (tmp_path / "pid").read_text().strip())
