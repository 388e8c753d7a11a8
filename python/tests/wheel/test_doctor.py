"""`jitlisten doctor` and its findings about the machine, a process and a command; its table of tools."""

import json
import os
import pathlib
import platform
import signal
import subprocess

import pytest
from conftest import PROGRAMS, command, python, require_tool, wait_for
from spaces import Container, need_root

KERNEL = PROGRAMS / "kernel.py"


def parse_report(result):
    facts = json.loads(result.stdout)
    tools = {tool["tool"]: tool for tool in facts["tools"]}
    findings = {(finding["about"], finding["found"]) for finding in facts["machine"] + facts.get("program", [])}
    return tools, findings, facts


def findings_about(facts, topic):
    return [finding for finding in facts["machine"] + facts.get("program", []) if finding["about"] == topic]


def test_the_machine(run):
    result = run(command(), "doctor")
    for heading in ["perf", "ptrace", "gdb", "glibc", "names", "whole stacks", "lines", "perf record -g"]:
        assert heading in result.stdout
    tools, _, facts = parse_report(run(command(), "doctor", "--json"))
    assert tools["py-spy --native, pystack"]["names"] and findings_about(facts, "library")


def test_a_place_that_is_no_good(run):
    tools, _, facts = parse_report(run(command(), "doctor", "--json", JITLISTEN_DIR="/nonexistent"))
    assert findings_about(facts, "images")[0]["state"] == "no" and findings_about(facts, "images")[0]["advice"]
    assert not tools["perf record --call-graph dwarf"]["stacks"]


def test_a_process_without_the_library_and_with_it(run, start):
    program = start(python(), KERNEL)
    tools, _, facts = parse_report(run(command(), "doctor", "--json", program.pid))
    assert findings_about(facts, "library")[0]["state"] == "no"
    assert not any(tool["names"] for tool in tools.values())
    assert all(tool["todo"] for tool in tools.values())
    assert "libllvmlite" in findings_about(facts, "LLVM")[0]["found"] and findings_about(facts, "Python")
    program = start(command(), "run", "--", python(), KERNEL)
    tools, _, facts = parse_report(run(command(), "doctor", "--json", program.pid))
    assert findings_about(facts, "library")[0]["state"] == "ok"
    assert tools["valgrind --tool=callgrind"]["names"]
    [remarks] = findings_about(facts, "remarks")
    assert remarks["state"] == "ok" and int(remarks["found"].rpartition(": ")[2]) > 0, remarks
    program = start(command(), "run", "--sinks", "perfmap", "--", python(), KERNEL)
    _, _, facts = parse_report(run(command(), "doctor", "--json", program.pid))
    assert not findings_about(facts, "remarks"), "without images nothing carries them"


def test_a_command_that_ends_and_one_that_does_not(run):
    short_program = "import time; time.sleep(2)"
    tools, _, facts = parse_report(
        run(command(), "doctor", "--json", "--seconds", "50", "--", python(), "-c", short_program)
    )
    assert (
        "ended" in findings_about(facts, "command")[0]["found"] and findings_about(facts, "LLVM")[0]["state"] == "note"
    )
    tools, _, facts = parse_report(run(command(), "doctor", "--json", "--seconds", "50", "--", python(), KERNEL))
    assert "stopped" in findings_about(facts, "command")[0]["found"] and tools["py-spy --native, pystack"]["names"]
    assert "libllvmlite" in findings_about(facts, "LLVM")[0]["found"]
    assert any("enabled" in finding["found"] for finding in findings_about(facts, "frame pointers"))


@pytest.mark.parametrize(
    "statement", ["", "import time; time.sleep(5)"], ids=["it ends at once", "it is looked at while it runs"]
)
def test_a_cache_without_frame_pointers(run, tmp_path, statement):
    program = tmp_path / "cached.py"
    program.write_text(
        f"import numba\n@numba.njit(cache=True)\ndef cached(x):\n    return x + 1\ncached(1)\n{statement}\n"
    )
    run(python(), program)
    # Numba would ignore this cache if line tables were enabled.
    tools, _, facts = parse_report(
        run(command(), "doctor", "--json", "--seconds", "50", "--", python(), program, JITLISTEN_LINES="0")
    )
    causes = [
        finding for finding in findings_about(facts, "frame pointers") if "omit --no-lines" in finding.get("advice", "")
    ]
    assert len(causes) == 1 and "libllvmlite.so: code without frame pointers was loaded, first " in causes[0]["found"]
    assert not tools["perf record -g"]["stacks"]


def test_an_isolated_python(run):
    tools, _, facts = parse_report(
        run(command(), "doctor", "--json", "--seconds", "50", "--", python(), "-I", KERNEL, "once")
    )
    assert findings_about(facts, "lines") and not tools["gdb"]["lines"]


def test_each_llvm_with_version_engine_and_how_it_is_heard(run, start):
    code = "import llvmlite.binding as b; print('.'.join(map(str, b.llvm_version_info)))"
    version = run(python(), "-c", code).stdout.strip()
    program = start(python(), KERNEL)
    facts = parse_report(run(command(), "doctor", "--json", program.pid))[2]
    llvm_finding = findings_about(facts, "LLVM")[0]["found"]
    assert f"LLVM {version}; with MCJIT" in llvm_finding and "not observed" in llvm_finding
    objects = int(llvm_finding.split(" objects")[0].split()[-1])
    assert objects > 0
    program = start(command(), "run", "--", python(), KERNEL)
    llvm_finding = findings_about(parse_report(run(command(), "doctor", "--json", program.pid))[2], "LLVM")[0]["found"]
    assert "GDB JIT list is hooked" in llvm_finding
    # jitlisten also maps the LLVM library's file, but that mapping does not contain the GDB JIT list.
    assert int(llvm_finding.split(" objects")[0].split()[-1]) == objects


def test_an_llvm_that_puts_nothing_into_its_list(run, tmp_path):
    """JITLink leaves the GDB JIT list empty, but JITLink's hook and the images show that code was compiled."""
    module = tmp_path / "waits.ll"
    module.write_text(
        "declare i32 @sleep(i32)\ndefine i32 @main() uwtable {\n  %x = call i32 @sleep(i32 60)\n  ret i32 %x\n}\n"
    )
    args = [require_tool("lli-19"), "--jit-kind=orc", "--jit-linker=jitlink", module]
    facts = parse_report(run(command(), "doctor", "--json", "--seconds", "50", "--", *args))[2]
    assert any("JITLink is hooked" in finding["found"] for finding in findings_about(facts, "LLVM"))
    seconds = float(findings_about(facts, "command")[0]["found"].split()[-2])
    assert seconds < 45, "it is looked at until it has compiled, and two seconds longer"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="its machine code is that of x86-64")
def test_code_that_no_compiler_reports(run, start, tmp_path):
    program = start(command(), "run", "--", python(), PROGRAMS / "unreported.py")
    tools, _, facts = parse_report(run(command(), "doctor", "--json", program.pid))
    [llvm] = findings_about(facts, "LLVM")
    assert llvm["state"] == "note" and "no object was reported" in llvm["found"]
    assert not any(tool["names"] for tool in tools.values())
    assert "no code was reported" in tools["jitlisten record"]["todo"]
    run(command(), "record", "-o", tmp_path / "prof.data", "--", python(), PROGRAMS / "unreported.py", "work")
    notes = json.loads(run(command(), "lines", "--json", "-", tmp_path / "prof.data").stdout)["notes"]
    [note] = [note for note in notes if "no compiler reported" in note]
    assert note.partition(" %")[0].isdigit() and "libllvmlite.so" in note


def find_llvm(run, pid, name):
    """Returns doctor's finding about the LLVM in a file of this name, and all findings."""
    facts = parse_report(run(command(), "doctor", "--json", pid))[2]
    [llvm] = [finding for finding in findings_about(facts, "LLVM") if name in finding["found"].split(": ")[0]]
    return llvm, facts


def test_objects_of_jitlink_in_a_process(run, start, tmp_path):
    """llvmlite with JITLink, which does not register code in the GDB JIT list."""
    hosts = pathlib.Path(__file__).parents[3] / "tests" / "hosts"
    program = tmp_path / "linked.py"
    program.write_text(
        f"import sys\nsys.path.insert(0, {str(hosts)!r})\nsys.argv[1:] = ['0', 'jitlink']\nimport orc\n"
        "print('ready', flush=True)\nimport time\ntime.sleep(600)\n"
    )
    program = start(command(), "run", "--", python(), "-B", program)
    llvm, facts = find_llvm(run, program.pid, "libllvmlite")
    assert "JITLink is hooked, objects so far: 1" in llvm["found"] and llvm["state"] == "ok"
    # Images of JITLink code lack padding before the code, so perf cannot use their unwind tables.
    assert "no padding" in findings_about(facts, "images")[1]["found"]
    tools = {tool["tool"]: tool for tool in facts["tools"]}
    assert not tools["perf record --call-graph dwarf"]["stacks"] and tools["py-spy --native, pystack"]["stacks"]


@pytest.fixture(scope="module")
def embedded(tmp_path_factory):
    """Two programs with LLVM 19 linked in, one of them stripped and the other also without type names."""
    directory = tmp_path_factory.mktemp("embedded")
    source = pathlib.Path(__file__).parents[3] / "tests" / "hosts" / "embedded.c"
    llvm_config_path = require_tool("llvm-config-19")
    llvm_config = lambda *args: subprocess.run(
        [llvm_config_path, *args], check=True, capture_output=True, text=True
    ).stdout.split()
    libraries = llvm_config("--link-static", "--libs", "orcjit", "mcjit", "x86", "irreader") + llvm_config(
        "--link-static", "--system-libs"
    )
    flags = ["-O1", "-DOLD_CONTEXTS", "-Wl,--gc-sections", "-s", f"-L{llvm_config('--libdir')[0]}"]
    stripped = directory / "stripped"
    subprocess.run(
        [require_tool("cc"), *flags, source, *libraries, "-lstdc++", "-pthread", "-ldl", "-o", stripped], check=True
    )
    nameless = directory / "nameless"
    content = stripped.read_bytes()
    for type_name in [
        b"14RuntimeDyldELFE",
        b"18RuntimeDyldELFMipsE",
        b"19RuntimeDyldCOFFI386E",
        b"3orc18ObjectLinkingLayerE",
    ]:
        assert b"N4llvm" + type_name + b"\0" in content
        content = content.replace(b"N4llvm" + type_name + b"\0", b"X" * (6 + len(type_name)) + b"\0")
    nameless.write_bytes(content)
    nameless.chmod(0o755)
    return {"stripped": stripped, "nameless": nameless}


@pytest.fixture
def start_compiled(environment):
    """Starts a program that compiles and then waits on its standard input."""
    processes = []

    def start_compiled(*args):
        process = subprocess.Popen(
            [str(arg) for arg in args], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        processes.append(process)
        assert any(line == "running\n" for line in process.stdout)
        return process.pid

    yield start_compiled
    for process in processes:
        process.communicate("\n")


def test_a_stripped_program_with_an_llvm_of_its_own(run, embedded, start_compiled):
    host = embedded["stripped"]
    for args in [], [command(), "run", "--"]:
        llvm, facts = find_llvm(run, start_compiled(*args, host, "mcjit", "5", "kept"), "/stripped")
        assert "LLVM 19.1." in llvm["found"] and "with MCJIT" in llvm["found"]
        if args:
            assert "RuntimeDyld is hooked, objects so far: 5" in llvm["found"] and llvm["state"] == "ok"
            assert "missing: frame pointers" in llvm["found"]
            assert "compiled functions keep no frame pointer" in findings_about(facts, "frame pointers")[0]["found"]
            assert not next(tool for tool in facts["tools"] if tool["tool"] == "perf record -g")["stacks"]
        else:
            assert "not observed" in llvm["found"]
    # LLVM 19's LLJIT links with JITLink.
    llvm, _ = find_llvm(run, start_compiled(command(), "run", "--", host, "orc", "5", "kept"), "/stripped")
    assert "JITLink is hooked, objects so far: 5" in llvm["found"]
    facts = parse_report(run(command(), "doctor", "--json", "--seconds", "50", "--", host, "mcjit", "300", "threads"))[
        2
    ]
    assert (
        len(
            [
                finding
                for finding in findings_about(facts, "LLVM")
                if "/stripped" in finding["found"] or "the program" in finding["found"]
            ]
        )
        == 1
    )


def test_a_process_in_start_up(environment, embedded):
    """Code compiled after doctor's first look at the process is found by its second look."""
    args = ["sh", "-c", f"read line; exec {embedded['stripped']} mcjit 5 kept"]
    popen_options = dict(env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with subprocess.Popen([command(), "run", "--", *args], **popen_options) as host:
        with subprocess.Popen([command(), "doctor", "--json", str(host.pid)], **popen_options) as doctor:
            wait_channel = pathlib.Path(f"/proc/{doctor.pid}/wchan")
            wait_for(lambda: doctor.poll() is not None or "nanosleep" in wait_channel.read_text(), "the first look")
            assert doctor.poll() is None, "it has looked once"
            doctor.send_signal(signal.SIGSTOP)
            host.stdin.write("\n")
            host.stdin.flush()
            assert any(line == "running\n" for line in host.stdout)
            doctor.send_signal(signal.SIGCONT)
            facts = json.loads(doctor.communicate()[0])
        host.communicate("\n")
    [llvm] = findings_about(facts, "LLVM")
    assert "/stripped" in llvm["found"] and "objects so far: 5" in llvm["found"], llvm


def test_an_llvm_of_which_nothing_is_heard(run, embedded, start_compiled):
    """This LLVM has neither symbols nor RTTI, so jitlisten cannot hook it."""
    for args in [], [command(), "run", "--"]:
        llvm, _ = find_llvm(run, start_compiled(*args, embedded["nameless"], "mcjit", "2", "kept"), "/nameless")
        assert "LLVM 19.1." in llvm["found"] and "not observed" in llvm["found"]
        if args:
            assert (
                llvm["state"] == "no"
                and "neither symbols nor RTTI" in llvm["found"]
                and "docs/limits.md" in llvm["advice"]
            )
    facts = parse_report(
        run(command(), "doctor", "--json", "--seconds", "50", "--", embedded["nameless"], "mcjit", "300", "threads")
    )[2]
    assert [finding["state"] for finding in findings_about(facts, "LLVM")] == ["no"]


def test_no_llvm(run, start):
    program = start(command(), "run", "--", python(), "-c", "import time; print('ready', flush=True); time.sleep(600)")
    [finding] = findings_about(parse_report(run(command(), "doctor", "--json", program.pid))[2], "LLVM")
    assert finding["found"] == "no LLVM in the process"


def test_code_that_is_older_than_the_library(run, start):
    program = start(python(), KERNEL)
    run(command(), "attach", program.pid)
    tools, _, facts = parse_report(run(command(), "doctor", "--json", program.pid))
    finding = findings_about(facts, "frame pointers")[0]
    assert (
        finding["state"] == "note"
        and "compiled functions keep no frame pointer" in finding["found"]
        and "jitlisten record" in finding["advice"]
    )
    # Images of code compiled before attaching lack padding before the code, so perf cannot use their unwind tables.
    assert not tools["perf record --call-graph dwarf"]["stacks"] and not tools["perf record -g"]["stacks"]
    assert tools["jitlisten record"]["stacks"] and tools["py-spy --native, pystack"]["stacks"]
    assert not tools["gdb"]["lines"]


def test_lines_of_some_functions(run, start, tmp_path):
    program = start(python(), KERNEL, "later")
    run(command(), "attach", program.pid)
    (tmp_path / "go").touch()
    wait_for(lambda: program.has_printed("compiled"), "the second function")
    tools, _, facts = parse_report(run(command(), "doctor", "--json", program.pid))
    [finding] = findings_about(facts, "lines")
    count_without_lines, total = (int(word) for word in finding["found"].split() if word.isdigit())
    assert finding["state"] == "note" and 0 < count_without_lines < total, finding
    assert not tools["gdb"]["lines"] and tools["gdb"]["todo"] == "some code has no lines, see above"
    assert "   some  " in run(command(), "doctor", program.pid).stdout


def test_nothing_is_compiled_yet(run, start):
    code = "import numba, time; print('ready', flush=True); time.sleep(600)"
    facts = parse_report(run(command(), "doctor", "--json", start(command(), "run", "--", python(), "-c", code).pid))[2]
    assert not findings_about(facts, "sink") and not findings_about(facts, "lines")


def test_lines_of_a_process(run, start):
    program = start(command(), "run", "--", python(), KERNEL)
    tools, _, facts = parse_report(run(command(), "doctor", "--json", program.pid))
    assert tools["gdb"]["lines"] and not findings_about(facts, "lines")
    program = start(command(), "run", "--no-lines", "--", python(), KERNEL)
    tools = parse_report(run(command(), "doctor", "--json", program.pid))[0]
    assert not tools["gdb"]["lines"] and "--no-lines" in tools["valgrind --tool=callgrind"]["todo"]


def test_a_sink_that_failed(run, start):
    """Images need a file system from which code may be mapped. The image sink stops if both image directories are
    mounted noexec."""
    need_root()
    mount_commands = ["mount -t tmpfs -o noexec tmpfs /mnt", "mount -t tmpfs -o noexec tmpfs /var/tmp"]
    program = Container(
        start, mount_commands=mount_commands, command_prefix="env JITLISTEN_DIR=/mnt", under_jitlisten=True
    )
    tools, _, facts = parse_report(run(command(), "doctor", "--json", program.pid))
    assert [finding["found"] for finding in findings_about(facts, "sink")] == [
        "image: nothing was compiled yet, or images failed"
    ]
    assert tools["perf record -g"]["names"] and not tools["py-spy --native, pystack"]["names"]
    args = ["unshare", "--mount", "sh", "-c", f'{mount_commands[0]}; {mount_commands[1]}; exec "$@"', "sh"]
    tools, _, facts = parse_report(
        run(*args, command(), "doctor", "--json", "--seconds", "50", "--", python(), KERNEL, JITLISTEN_DIR="/mnt")
    )
    assert (
        findings_about(facts, "images")[0]["state"] == "no" and "noexec" in findings_about(facts, "images")[0]["found"]
    )
    assert any("the image sink stops" in finding["found"] for finding in findings_about(facts, "sink"))


def test_the_other_place_for_images(run):
    need_root()
    args = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o noexec tmpfs /mnt; exec "$@"', "sh"]
    tools, _, facts = parse_report(run(*args, command(), "doctor", "--json", JITLISTEN_DIR="/mnt"))
    finding = findings_about(facts, "images")[0]
    assert finding["state"] == "note" and "noexec" in finding["found"] and "they go to /var/tmp" in finding["found"]
    assert tools["py-spy --native, pystack"]["names"]


def test_tools_that_name_what_is_in_the_list_of_modules(run):
    tools = parse_report(run(command(), "doctor", "--json"))[0]
    without_modules = parse_report(run(command(), "doctor", "--json", "--sinks", "perfmap,image,unwind"))[0]
    for tool in ["memray run --native", "heaptrack"]:
        assert tools[tool]["names"] and tools[tool]["stacks"]
        assert not without_modules[tool]["names"] and without_modules[tool]["todo"].endswith(
            "--sinks perfmap,image,unwind,modules"
        )
    assert tools["jitlisten record"]["names"]


def test_a_gdb_that_sees_no_compiled_code(run, tmp_path):
    """A fake gdb that prints the version number of gdb 15, which no tested distribution ships."""
    gdb = tmp_path / "gdb"
    gdb.write_text("#!/bin/sh\necho 'GNU gdb (Ubuntu 15.0.50.20240403-0ubuntu1) 15.0.50.20240403-git'\n")
    gdb.chmod(0o755)
    tools, _, facts = parse_report(run(command(), "doctor", "--json", PATH=f"{tmp_path}:{os.environ['PATH']}"))
    assert (
        findings_about(facts, "gdb")[0]["state"] == "no" and "16 and newer" in findings_about(facts, "gdb")[0]["advice"]
    )
    assert not tools["gdb"]["names"] and "16 and newer" in tools["gdb"]["todo"]


def test_every_no_has_one_thing_to_do(run, start):
    program = start(python(), KERNEL)
    for args in [[], [program.pid]]:
        for tool in parse_report(run(command(), "doctor", "--json", *args))[0].values():
            # A tool that sees everything may still have a limit that something can be done about.
            assert (tool["names"] and tool["stacks"] and tool["lines"]) or "todo" in tool


@pytest.mark.parametrize("trap_command", ["mkfifo {0}.log", "ln -s /dev/zero {0}.log"])
def test_nobody_can_foresee_the_name_of_its_log(run, tmp_path, trap_command):
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    script = trap_command.format("$TMPDIR/jitlisten-doctor-$$") + '; exec "$@"'
    args = ["sh", "-c", script, "sh", command(), "doctor", "--", python(), "-c", "pass"]
    assert "command" in run(*args, TMPDIR=scratch, status=None, timeout=120).stdout
    assert len(list(scratch.iterdir())) == 1, "its own directory is gone"


def test_a_signal_ends_it_and_leaves_nothing(environment, tmp_path):
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    program = "import os, time; print(os.getpid(), file=open('pid', 'w'), flush=True); time.sleep(600)"
    doctor = subprocess.Popen(
        [command(), "doctor", "--seconds", "500", "--", python(), "-c", program],
        env={**environment, "TMPDIR": str(scratch)},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "the program")
    assert len(list(scratch.iterdir())) == 1
    doctor.terminate()
    doctor.communicate(timeout=60)
    assert list(scratch.iterdir()) == []
    assert not os.path.exists("/proc/" + (tmp_path / "pid").read_text().strip())
