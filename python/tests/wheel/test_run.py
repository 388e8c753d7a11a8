"""`jitlisten run` and its effects on the environment and the libraries of the program and of its children."""

import json
import os
import re
import signal
import subprocess

import pytest
from conftest import PROGRAMS, command, need_package, perf_map, pinned_program, python, require_tool, wait_for

STATE_PROGRAM = PROGRAMS / "environment.py"
KERNEL = PROGRAMS / "kernel.py"
LIBM = "/lib/x86_64-linux-gnu/libm.so.6" if os.path.exists("/lib/x86_64-linux-gnu/libm.so.6") else ""


def parse_state(result):
    return json.loads(result.stdout.strip().splitlines()[-1])


def is_unchanged(state, preload=None, path=None):
    return (
        state["LD_PRELOAD"] == preload
        and state["PYTHONPATH"] == path
        and not (state["JITLISTEN"] or state["JITLISTEN_RUN"])
    )


def test_the_program_has_the_library_and_its_children_have_what_was_before(run):
    state = parse_state(run(command(), "run", "--", python(), STATE_PROGRAM))
    assert state["self"]["library"] and not state["child"]["library"]
    assert is_unchanged(state["self"]) and is_unchanged(state["child"])
    assert state["self"]["paths"] == [] and state["child"]["paths"] == []


def test_values_of_the_user_are_kept(run):
    state = parse_state(run(command(), "run", "--", python(), STATE_PROGRAM, LD_PRELOAD=LIBM, PYTHONPATH="/a:/b"))
    assert state["self"]["library"] and not state["child"]["library"]
    assert is_unchanged(state["self"], LIBM or None, "/a:/b") and is_unchanged(state["child"], LIBM or None, "/a:/b")
    state = parse_state(run(command(), "run", "--", python(), STATE_PROGRAM, JITLISTEN="unwind"))
    assert state["self"]["JITLISTEN"] == state["child"]["JITLISTEN"] == "unwind"


def test_children_are_asked_for(run):
    state = parse_state(run(command(), "run", "-s", "--", python(), STATE_PROGRAM))
    assert state["self"]["library"] and state["child"]["library"]
    assert state["child"]["JITLISTEN"] == "perfmap,image,unwind,modules"


def test_the_next_sitecustomize_runs_once(run, tmp_path):
    site_directory = tmp_path / "site"
    site_directory.mkdir()
    (site_directory / "sitecustomize.py").write_text("import sys\nsys.customized = getattr(sys, 'customized', 0) + 1\n")
    state = parse_state(run(command(), "run", "--", python(), STATE_PROGRAM, PYTHONPATH=site_directory))
    assert state["self"]["customized"] == 1 and state["self"]["PYTHONPATH"] == str(site_directory)
    (site_directory / "sitecustomize.py").write_text("raise RuntimeError('of the user')\n")
    result = run(command(), "run", "--", python(), STATE_PROGRAM, PYTHONPATH=site_directory)
    plain_result = run(python(), STATE_PROGRAM, PYTHONPATH=site_directory)
    assert "of the user" in result.stderr and "of the user" in plain_result.stderr
    assert result.stderr == plain_result.stderr


@pytest.mark.parametrize("name", ["types", "json", "operator", "struct", "warnings", "re", "functools", "jitlisten"])
def test_a_script_has_its_own_modules(run, tmp_path, name):
    (tmp_path / f"{name}.py").write_text("mine = 'mine'\n")
    script = tmp_path / "script.py"
    script.write_text(f"import {name}\nprint(getattr({name}, 'mine', 'not mine'))\n")
    plain_result = run(python(), script, status=None)
    with_library = run(command(), "run", "--", python(), script, status=None)
    assert (with_library.returncode, with_library.stdout, with_library.stderr) == (
        plain_result.returncode,
        plain_result.stdout,
        plain_result.stderr,
    )


def test_the_import_of_numba_costs_little(run, tmp_path):
    """Compares with a run of Python alone: full garbage collections, modules, and memory outside of our library."""
    program = tmp_path / "program.py"
    program.write_text(
        "import gc, json, sys\n"
        "full = []\n"
        "gc.callbacks.append(lambda phase, info: full.append(phase) if info['generation'] == 2 else None)\n"
        "import numba\n"
        "collections = len(full)\n"
        "if 'compile' in sys.argv:\n"
        "    @numba.njit\n"
        "    def increment(x):\n"
        "        return x + 1\n"
        "    increment(1)\n"
        "resident, is_ours = 0, False\n"
        "for line in open('/proc/self/smaps'):\n"
        "    if line[0] in '0123456789abcdef':\n"
        "        is_ours = 'libjitlisten.so' in line\n"
        "    elif line.startswith('Rss:') and not is_ours:\n"
        "        resident += int(line.split()[1])\n"
        "ours = sorted(name for name in sys.modules if name.startswith('jitlisten.'))\n"
        "print(json.dumps([collections, ours, resident / 1024]))\n"
    )
    plain_collections, no_modules, plain_resident = parse_state(run(python(), program))
    collections, modules, resident = parse_state(run(command(), "run", "--", python(), program))
    assert (collections, no_modules) == (plain_collections, [])
    assert "jitlisten._lines.hooks" in modules
    assert not {f"jitlisten.{name}" for name in ("_compilations", "_names", "_owners", "_library")} & set(modules)
    assert resident - plain_resident < 10
    plain_resident = parse_state(run(python(), program, "compile"))[2]
    recorded = ["record", "-o", tmp_path / "f.data", "--", python(), program, "compile"]
    # Without copies of unwind tables: llvmlite's alone has 7 MB.
    assert parse_state(run(command(), *recorded))[2] - plain_resident < 20


def test_there_is_no_sitecustomize_where_there_was_none(run):
    args = [python(), "-c", "import sys; print('sitecustomize' in sys.modules); import sitecustomize"]
    plain_result, with_library = run(*args, status=None), run(command(), "run", "--", *args, status=None)
    assert "No module named 'sitecustomize'" in plain_result.stderr
    assert (with_library.returncode, with_library.stdout, with_library.stderr) == (
        plain_result.returncode,
        plain_result.stdout,
        plain_result.stderr,
    )


def test_numba_may_be_imported_first_by_a_child(run, tmp_path):
    program = tmp_path / "late.py"
    program.write_text(
        "import os, jitlisten\n"
        "before = jitlisten.status().lines\n"
        "if os.fork() == 0:\n"
        "    import numba\n"
        "    print(before, jitlisten.status().lines, flush=True)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )
    assert run(command(), "run", "--", python(), program).stdout == "False True\n"


def test_an_isolated_python_has_the_library_alone(run):
    state = parse_state(run(command(), "run", "--", python(), "-I", STATE_PROGRAM))
    assert state["self"]["library"] and not state["child"]["library"]
    # The parent runs in isolated mode and cannot remove the site directory from PYTHONPATH, so the child does.
    assert is_unchanged(state["child"])


@pytest.mark.parametrize(
    "args", [["env", "A=1"], ["sh", "-c", 'exec "$0" "$@"'], ["sh", "-c", '"$0" "$@"; exit $?'], ["nice"]]
)
def test_tools_pass_it_on(run, args):
    state = parse_state(run(command(), "run", "--", *args, python(), STATE_PROGRAM))
    assert state["self"]["library"] and not state["child"]["library"]
    assert is_unchanged(state["self"]) and is_unchanged(state["child"])


def test_before_and_behind_perf(run, tmp_path):
    require_tool("perf")
    args = ["perf", "record", "-q", "-e", "cpu-clock:u", "-g", "-o", tmp_path / "perf.data", "--"]
    state = parse_state(run(command(), "run", "--", *args, python(), STATE_PROGRAM))
    assert state["self"]["library"] and not state["child"]["library"]
    state = parse_state(run(*args, command(), "run", "--", python(), STATE_PROGRAM))
    assert state["self"]["library"] and not state["child"]["library"]


def test_before_gdb(run):
    require_tool("gdb")
    result = run(
        command(),
        "run",
        "--",
        "gdb",
        "-nx",
        "-batch",
        "-iex",
        "set debuginfod enabled off",
        "-ex",
        "run",
        "--args",
        python(),
        STATE_PROGRAM,
    )
    state = json.loads(next(line for line in result.stdout.splitlines() if line.startswith('{"self"')))
    assert state["self"]["library"] and not state["child"]["library"]


def test_behind_gdb_and_valgrind(run):
    gdb, valgrind = require_tool("gdb"), require_tool("valgrind")
    args = [command(), "run", "--", python(), "-S", STATE_PROGRAM, "child"]
    result = run(gdb, "-nx", "-batch", "-iex", "set debuginfod enabled off", "-ex", "run", "--args", *args)
    assert json.loads(next(line for line in result.stdout.splitlines() if line.startswith('{"library"')))["library"]
    # `jitlisten run` execs the program, which valgrind follows only with --trace-children.
    assert parse_state(run(valgrind, "-q", "--tool=none", "--trace-children=yes", *args, timeout=180))["library"]


def test_before_valgrind(run):
    require_tool("valgrind")
    result = run(
        command(), "run", "--", "valgrind", "-q", "--tool=none", python(), "-S", STATE_PROGRAM, "child", timeout=180
    )
    assert parse_state(result)["library"]


#: Matches a frame of the compiled function at a line of its loop.
LOOP_FRAME = re.compile(r"burn\(int64\)[^;]* \(kernel\.py:1[67]\)")


def test_before_py_spy(run, tmp_path):
    py_spy = pinned_program("numba-0.68.1/bin/py-spy")
    output = tmp_path / "out.txt"
    run(command(), "run", "--", py_spy, "record", "--native", "-f", "raw", "-o", output, "--", python(), KERNEL, "work")
    assert LOOP_FRAME.search(output.read_text())


def test_behind_py_spy(run, tmp_path):
    py_spy = pinned_program("numba-0.68.1/bin/py-spy")
    output = tmp_path / "out.txt"
    args = [command(), "run", "--", python(), KERNEL, "work"]
    run(py_spy, "record", "-r", "20", "--native", "-f", "raw", "-o", output, "--", *args, timeout=240)
    assert LOOP_FRAME.search(output.read_text())


def test_before_memray_in_another_python(run, tmp_path):
    memray = pinned_program("numba-0.60.0/bin/memray")
    args = [memray, "run", "-q", "--native", "-o", tmp_path / "out.bin", STATE_PROGRAM]
    state = parse_state(run(command(), "run", "--", *args))
    assert state["self"]["library"] and not state["child"]["library"]


def test_scalene_names_the_compiled_function(run, tmp_path):
    """Scalene unwinds native stacks in a Python that it starts."""
    need_package(run, "scalene")
    profile = tmp_path / "profile.json"
    scalene = [python(), "-m", "scalene", "run", "--cpu-only", "-o", profile]
    run(command(), "run", "-s", "--", *scalene, KERNEL, "---", "work")
    stacks = [frames for frames, *_ in json.loads(profile.read_text())["combined_stacks"]]
    names = {frame["display_name"] for frames in stacks for frame in frames if frame["kind"] == "native"}
    assert any("__main__.burn(int64)" in name for name in names), names


def test_perf_names_the_compiled_function(run, tmp_path):
    require_tool("perf")
    data = tmp_path / "perf.data"
    args = ["perf", "record", "-q", "-e", "cpu-clock:u", "-g", "-o", data, "--", python(), KERNEL, "work"]
    run(command(), "run", "--", *args)
    script = run("perf", "script", "-i", data, "--no-inline", "-F", "ip,sym,dso").stdout
    assert "burn" in script


def test_names_without_images_are_in_the_perf_map(start):
    program = start(command(), "run", "--sinks", "perfmap", "--", python(), KERNEL)
    assert "__main__.burn" in perf_map(program.pid)


def test_there_is_no_process_in_between(start):
    program = start(command(), "run", "--", python(), KERNEL)
    assert program.has_printed(f"pid {program.pid}\n")


def test_exit_status_and_signals_are_those_of_the_program(run):
    run(command(), "run", "--", python(), STATE_PROGRAM, STATUS=7, status=7)
    run(command(), "run", "--", "sh", "-c", "kill -TERM $$", status=-signal.SIGTERM)


def test_scripts_modules_and_console_scripts(run, tmp_path):
    script = tmp_path / "script"
    script.write_text(f"#!{python()}\n" + STATE_PROGRAM.read_text())
    script.chmod(0o755)
    assert parse_state(run(command(), "run", "--", script, "child"))["library"]
    (tmp_path / "module.py").write_text(STATE_PROGRAM.read_text())
    assert parse_state(run(command(), "run", "--", python(), "-m", "module", "child"))["library"]
    console_script = python().parent / "jitlisten-look"
    console_script.write_text(f"#!{python()}\nimport sys\nsys.argv[1:] = ['child']\n" + STATE_PROGRAM.read_text())
    console_script.chmod(0o755)
    path = f"{python().parent}:{os.environ['PATH']}"
    try:
        assert parse_state(run(command(), "run", "--", "jitlisten-look", PATH=path))["library"]
    finally:
        console_script.unlink()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_of_multiprocessing(run, tmp_path, method):
    program = tmp_path / "pool.py"
    program.write_text(
        "import multiprocessing as m, os, sys, numba\n"
        "@numba.njit\ndef work(n):\n    return n + 1\n"
        "def task(n):\n    work(n)\n    return os.getpid(), os.path.exists('/tmp/perf-%d.map' % os.getpid())\n"
        "if __name__ == '__main__':\n"
        "    with m.get_context(sys.argv[1]).Pool(2) as pool:\n"
        "        print(pool.map(task, range(4)))\n"
    )
    result = run(command(), "run", "-s", "--", python(), program, method, timeout=180)
    assert "True" in result.stdout and "False" not in result.stdout
    if method == "spawn":
        result = run(command(), "run", "--", python(), program, method, timeout=180)
        assert "False" in result.stdout and "True" not in result.stdout


def test_a_launcher_with_the_children_it_starts(run, tmp_path):
    launcher = tmp_path / "launch.py"
    launcher.write_text("import subprocess, sys\nsys.exit(subprocess.call([sys.executable] + sys.argv[1:]))\n")
    assert parse_state(run(command(), "run", "-s", "--", python(), launcher, STATE_PROGRAM, "child"))["library"]


LAUNCHER = """
import os, subprocess, sys
# As torchrun does: a worker for each rank, started by its path, with variables that say which it is.
words = [sys.executable, "-u", *sys.argv[1:]]
workers = [subprocess.Popen(words, env={**os.environ, "RANK": str(rank)}) for rank in range(2)]
sys.exit(max(worker.wait() for worker in workers))
"""


def test_a_launcher_of_ranks_as_a_console_script(run, tmp_path):
    console_script = tmp_path / "launch"
    console_script.write_text(f"#!{python()}\n" + LAUNCHER)
    console_script.chmod(0o755)
    states = [
        json.loads(line)
        for line in run(command(), "run", "-s", "--", console_script, STATE_PROGRAM, "child").stdout.splitlines()
    ]
    assert [state["library"] for state in states] == [True, True]
    states = [
        json.loads(line)
        for line in run(command(), "run", "--", console_script, STATE_PROGRAM, "child").stdout.splitlines()
    ]
    assert [state["library"] for state in states] == [False, False] and is_unchanged(states[0])


def test_a_signal_from_outside_reaches_the_program(start, tmp_path):
    (tmp_path / "handles.py").write_text(
        "import signal, sys\nsignal.signal(signal.SIGUSR1, lambda *_: sys.exit(5))\nprint('ready',"
        " flush=True)\nsignal.pause()\n"
    )
    program = start(command(), "run", "--", python(), "handles.py")
    program.process.send_signal(signal.SIGUSR1)
    assert program.process.wait(timeout=60) == 5
    program = start(command(), "run", "--", python(), "handles.py")
    program.process.send_signal(signal.SIGINT)
    assert program.process.wait(timeout=60) == -signal.SIGINT


@pytest.mark.parametrize("args", [["record", "--"], ["lines", "--"], ["record", "--bundle", "--"]], ids=" ".join)
def test_a_signal_to_the_process_group_is_the_program_s(environment, tmp_path, args):
    program = (
        "import os, signal, sys\nseen = []\nfor number in (signal.SIGUSR1, signal.SIGALRM, signal.SIGRTMIN + 5):\n"
        "    signal.signal(number, lambda number, _: seen.append(number))\nopen('ready', 'w').close()\n"
        "while len(seen) < 3: sum(range(10**6))\nsys.exit(5)\n"
    )
    args = [command(), *args, python(), "-c", program]
    process = subprocess.Popen(
        [str(word) for word in args], env=environment, cwd=tmp_path, start_new_session=True, stderr=subprocess.PIPE
    )
    wait_for((tmp_path / "ready").exists, "the program")
    for signal_number in (signal.SIGUSR1, signal.SIGALRM, signal.SIGRTMIN + 5):
        os.killpg(process.pid, signal_number)
    assert process.communicate(timeout=60) and process.returncode == 5


@pytest.mark.parametrize("args", [["run", "--"], ["record", "--"], ["lines", "--"]], ids=" ".join)
def test_closed_descriptors_stay_closed(environment, tmp_path, args):
    program = (
        "import os\n"
        "def is_open(number):\n"
        "    try: os.fstat(number)\n"
        "    except OSError: return False\n"
        "    return True\n"
        "seen = list(map(is_open, range(3)))\n"
        "with open('seen', 'w') as file: print(seen, file=file)\n"
    )
    # From the second recording on, an earlier one is renamed, while the program starts.
    redirected = [("<&- >&- 2>&-", [False] * 3), (">&-", [True, False, True]), ("<&-", [False, True, True])]
    for redirections, state in [*redirected * 3, ("", [True] * 3)]:
        shell_line = (
            subprocess.list2cmdline([str(command()), *args, str(python()), "-c"]) + f' "$PROGRAM" {redirections}'
        )
        subprocess.run(
            shell_line,
            shell=True,
            env={**environment, "PROGRAM": program},
            cwd=tmp_path,
            timeout=120,
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
        assert (tmp_path / "seen").read_text() == f"{state}\n", redirections
        (tmp_path / "seen").unlink()


def test_python_dash_m_is_the_same_command(run):
    state = parse_state(run(python(), "-m", "jitlisten", "run", "--", python(), STATE_PROGRAM))
    assert state["self"]["library"] and not state["child"]["library"]


@pytest.mark.parametrize("args, message", [(["--sinks", "nonsense", "--", "true"], "unknown sink"), ([], "required")])
def test_bad_input_is_one_sentence(run, args, message):
    result = run(command(), "run", *args, status=2)
    assert message in result.stderr and result.stdout == ""


def test_no_lines(start):
    program = start(command(), "run", "--no-lines", "--", python(), KERNEL)
    environ = open(f"/proc/{program.pid}/environ").read().split("\0")
    assert not any("_site" in variable for variable in environ)
    wait_for(lambda: "__main__.burn" in perf_map(program.pid), "the perf map")


def test_a_static_program_is_named_as_one(run, start, tmp_path):
    source = tmp_path / "static.c"
    source.write_text(
        '#include <stdio.h>\n#include <unistd.h>\nint main(int n, char **w) { puts("ready"); fflush(stdout); if (n > 1)'
        " pause(); return !w; }\n"
    )
    run("cc", "-static", "-o", tmp_path / "static", source)
    run_result = run(command(), "run", "--", tmp_path / "static")
    assert (
        run_result.stdout == "ready\n"
        and "is statically linked, so nothing can be preloaded into it" in run_result.stderr
    )
    doctor_result = run(command(), "doctor", start(tmp_path / "static", "waits").pid, status=None)
    assert "is statically linked: nothing can be preloaded or attached" in doctor_result.stdout
    assert "in front of the command" not in doctor_result.stdout and "try again" not in doctor_result.stdout
