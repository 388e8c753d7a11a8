"""`jitlisten run`: what reaches the program, and what its children get."""

import json
import os
import re
import signal
import subprocess

import pytest
from conftest import PROGRAMS, command, need, other_environment, perf_map, python, wait_for

LOOK = PROGRAMS / "environment.py"
KERNEL = PROGRAMS / "kernel.py"
LIBM = "/lib/x86_64-linux-gnu/libm.so.6" if os.path.exists("/lib/x86_64-linux-gnu/libm.so.6") else ""


def look(done):
    return json.loads(done.stdout.strip().splitlines()[-1])


def is_as_before(seen, preload=None, path=None):
    return (
        seen["LD_PRELOAD"] == preload
        and seen["PYTHONPATH"] == path
        and not (seen["JITLISTEN"] or seen["JITLISTEN_RUN"])
    )


def test_the_program_has_the_library_and_its_children_have_what_was_before(run):
    seen = look(run(command(), "run", "--", python(), LOOK))
    assert seen["self"]["library"] and not seen["child"]["library"]
    assert is_as_before(seen["self"]) and is_as_before(seen["child"])
    assert seen["self"]["paths"] == [] and seen["child"]["paths"] == []


def test_values_of_the_user_are_kept(run):
    seen = look(run(command(), "run", "--", python(), LOOK, LD_PRELOAD=LIBM, PYTHONPATH="/a:/b"))
    assert seen["self"]["library"] and not seen["child"]["library"]
    assert is_as_before(seen["self"], LIBM or None, "/a:/b") and is_as_before(seen["child"], LIBM or None, "/a:/b")
    seen = look(run(command(), "run", "--", python(), LOOK, JITLISTEN="unwind"))
    assert seen["self"]["JITLISTEN"] == seen["child"]["JITLISTEN"] == "unwind"


def test_children_are_asked_for(run):
    seen = look(run(command(), "run", "-s", "--", python(), LOOK))
    assert seen["self"]["library"] and seen["child"]["library"]
    assert seen["child"]["JITLISTEN"] == "perfmap,image,unwind,modules"


def test_the_next_sitecustomize_runs_once(run, tmp_path):
    place = tmp_path / "site"
    place.mkdir()
    (place / "sitecustomize.py").write_text("import sys\nsys.customized = getattr(sys, 'customized', 0) + 1\n")
    seen = look(run(command(), "run", "--", python(), LOOK, PYTHONPATH=place))
    assert seen["self"]["customized"] == 1 and seen["self"]["PYTHONPATH"] == str(place)
    (place / "sitecustomize.py").write_text("raise RuntimeError('of the user')\n")
    done = run(command(), "run", "--", python(), LOOK, PYTHONPATH=place)
    alone = run(python(), LOOK, PYTHONPATH=place)
    assert "of the user" in done.stderr and "of the user" in alone.stderr
    assert done.stderr == alone.stderr


@pytest.mark.parametrize("name", ["types", "json", "operator", "struct", "warnings", "re", "functools", "jitlisten"])
def test_a_script_has_its_own_modules(run, tmp_path, name):
    (tmp_path / f"{name}.py").write_text("mine = 'mine'\n")
    script = tmp_path / "script.py"
    script.write_text(f"import {name}\nprint(getattr({name}, 'mine', 'not mine'))\n")
    alone = run(python(), script, status=None)
    below = run(command(), "run", "--", python(), script, status=None)
    assert (below.returncode, below.stdout, below.stderr) == (alone.returncode, alone.stdout, alone.stderr)


def test_there_is_no_sitecustomize_where_there_was_none(run):
    words = [python(), "-c", "import sys; print('sitecustomize' in sys.modules); import sitecustomize"]
    alone, below = run(*words, status=None), run(command(), "run", "--", *words, status=None)
    assert "No module named 'sitecustomize'" in alone.stderr
    assert (below.returncode, below.stdout, below.stderr) == (alone.returncode, alone.stdout, alone.stderr)


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
    seen = look(run(command(), "run", "--", python(), "-I", LOOK))
    assert seen["self"]["library"] and not seen["child"]["library"]
    # Nothing could take it out of PYTHONPATH but the child itself.
    assert is_as_before(seen["child"])


@pytest.mark.parametrize(
    "words", [["env", "A=1"], ["sh", "-c", 'exec "$0" "$@"'], ["sh", "-c", '"$0" "$@"; exit $?'], ["nice"]]
)
def test_tools_pass_it_on(run, words):
    seen = look(run(command(), "run", "--", *words, python(), LOOK))
    assert seen["self"]["library"] and not seen["child"]["library"]
    assert is_as_before(seen["self"]) and is_as_before(seen["child"])


def test_before_and_behind_perf(run, tmp_path):
    need("perf")
    words = ["perf", "record", "-q", "-e", "cpu-clock:u", "-g", "-o", tmp_path / "perf.data", "--"]
    seen = look(run(command(), "run", "--", *words, python(), LOOK))
    assert seen["self"]["library"] and not seen["child"]["library"]
    seen = look(run(*words, command(), "run", "--", python(), LOOK))
    assert seen["self"]["library"] and not seen["child"]["library"]


def test_before_gdb(run):
    need("gdb")
    done = run(
        command(), "run", "--", "gdb", "-nx", "-batch", "-iex", "set debuginfod enabled off", "-ex", "run", "--args",
        python(), LOOK,
    )
    seen = json.loads(next(line for line in done.stdout.splitlines() if line.startswith('{"self"')))
    assert seen["self"]["library"] and not seen["child"]["library"]


def test_behind_gdb_and_valgrind(run):
    gdb, valgrind = need("gdb"), need("valgrind")
    words = [command(), "run", "--", python(), "-S", LOOK, "child"]
    done = run(gdb, "-nx", "-batch", "-iex", "set debuginfod enabled off", "-ex", "run", "--args", *words)
    assert json.loads(next(line for line in done.stdout.splitlines() if line.startswith('{"library"')))["library"]
    # The command becomes the program by exec, which valgrind follows only when it is asked to.
    assert look(run(valgrind, "-q", "--tool=none", "--trace-children=yes", *words, timeout=180))["library"]


def test_before_valgrind(run):
    need("valgrind")
    done = run(command(), "run", "--", "valgrind", "-q", "--tool=none", python(), "-S", LOOK, "child", timeout=180)
    assert look(done)["library"]


#: The function, and a line of its loop: line tables are on.
IN_THE_LOOP = re.compile(r"burn\(int64\)[^;]* \(kernel\.py:1[67]\)")


def test_before_py_spy(run, tmp_path):
    spy = other_environment("numba-0.68.1/bin/py-spy")
    output = tmp_path / "out.txt"
    run(command(), "run", "--", spy, "record", "--native", "-f", "raw", "-o", output, "--", python(), KERNEL, "work")
    assert IN_THE_LOOP.search(output.read_text())


def test_behind_py_spy(run, tmp_path):
    spy = other_environment("numba-0.68.1/bin/py-spy")
    output = tmp_path / "out.txt"
    words = [command(), "run", "--", python(), KERNEL, "work"]
    run(spy, "record", "-r", "20", "--native", "-f", "raw", "-o", output, "--", *words, timeout=240)
    assert IN_THE_LOOP.search(output.read_text())


def test_before_memray_in_another_python(run, tmp_path):
    memray = other_environment("numba-0.60.0/bin/memray")
    words = [memray, "run", "-q", "--native", "-o", tmp_path / "out.bin", LOOK]
    seen = look(run(command(), "run", "--", *words))
    assert seen["self"]["library"] and not seen["child"]["library"]


def test_perf_names_the_compiled_function(run, tmp_path):
    need("perf")
    data = tmp_path / "perf.data"
    words = ["perf", "record", "-q", "-e", "cpu-clock:u", "-g", "-o", data, "--", python(), KERNEL, "work"]
    run(command(), "run", "--", *words)
    script = run("perf", "script", "-i", data, "--no-inline", "-F", "ip,sym,dso").stdout
    assert "burn" in script


def test_names_without_images_are_in_the_perf_map(start):
    program = start(command(), "run", "--sinks", "perfmap", "--", python(), KERNEL)
    assert "__main__.burn" in perf_map(program.pid)


def test_there_is_no_process_in_between(start):
    program = start(command(), "run", "--", python(), KERNEL)
    assert program.has_said(f"pid {program.pid}\n")


def test_exit_status_and_signals_are_those_of_the_program(run):
    run(command(), "run", "--", python(), LOOK, STATUS=7, status=7)
    run(command(), "run", "--", "sh", "-c", "kill -TERM $$", status=-signal.SIGTERM)


def test_scripts_modules_and_console_scripts(run, tmp_path):
    script = tmp_path / "script"
    script.write_text(f"#!{python()}\n" + LOOK.read_text())
    script.chmod(0o755)
    assert look(run(command(), "run", "--", script, "child"))["library"]
    (tmp_path / "module.py").write_text(LOOK.read_text())
    assert look(run(command(), "run", "--", python(), "-m", "module", "child"))["library"]
    console = python().parent / "jitlisten-look"
    console.write_text(f"#!{python()}\nimport sys\nsys.argv[1:] = ['child']\n" + LOOK.read_text())
    console.chmod(0o755)
    path = f"{python().parent}:{os.environ['PATH']}"
    try:
        assert look(run(command(), "run", "--", "jitlisten-look", PATH=path))["library"]
    finally:
        console.unlink()


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
    done = run(command(), "run", "-s", "--", python(), program, method, timeout=180)
    assert "True" in done.stdout and "False" not in done.stdout
    if method == "spawn":
        done = run(command(), "run", "--", python(), program, method, timeout=180)
        assert "False" in done.stdout and "True" not in done.stdout


def test_a_launcher_with_the_children_it_starts(run, tmp_path):
    launcher = tmp_path / "launch.py"
    launcher.write_text("import subprocess, sys\nsys.exit(subprocess.call([sys.executable] + sys.argv[1:]))\n")
    assert look(run(command(), "run", "-s", "--", python(), launcher, LOOK, "child"))["library"]


LAUNCHER = """
import os, subprocess, sys
# As torchrun does: a worker for each rank, started by its path, with variables that say which it is.
words = [sys.executable, "-u", *sys.argv[1:]]
workers = [subprocess.Popen(words, env={**os.environ, "RANK": str(rank)}) for rank in range(2)]
sys.exit(max(worker.wait() for worker in workers))
"""


def test_a_launcher_of_ranks_as_a_console_script(run, tmp_path):
    console = tmp_path / "launch"
    console.write_text(f"#!{python()}\n" + LAUNCHER)
    console.chmod(0o755)
    seen = [json.loads(line) for line in run(command(), "run", "-s", "--", console, LOOK, "child").stdout.splitlines()]
    assert [one["library"] for one in seen] == [True, True]
    seen = [json.loads(line) for line in run(command(), "run", "--", console, LOOK, "child").stdout.splitlines()]
    assert [one["library"] for one in seen] == [False, False] and is_as_before(seen[0])


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


@pytest.mark.parametrize("words", [["record", "--"], ["lines", "--"], ["record", "--bundle", "--"]], ids=" ".join)
def test_a_signal_to_the_process_group_is_the_program_s(environment, tmp_path, words):
    program = (
        "import os, signal, sys\nseen = []\nfor number in (signal.SIGUSR1, signal.SIGALRM, signal.SIGRTMIN + 5):\n"
        "    signal.signal(number, lambda number, _: seen.append(number))\nopen('ready', 'w').close()\n"
        "while len(seen) < 3: sum(range(10**6))\nsys.exit(5)\n"
    )
    words = [command(), *words, python(), "-c", program]
    group = subprocess.Popen(
        [str(word) for word in words], env=environment, cwd=tmp_path, start_new_session=True, stderr=subprocess.PIPE
    )
    wait_for((tmp_path / "ready").exists, "the program")
    for number in (signal.SIGUSR1, signal.SIGALRM, signal.SIGRTMIN + 5):
        os.killpg(group.pid, number)
    assert group.communicate(timeout=60) and group.returncode == 5


@pytest.mark.parametrize("words", [["run", "--"], ["record", "--"], ["lines", "--"]], ids=" ".join)
def test_closed_descriptors_stay_closed(environment, tmp_path, words):
    program = (
        "import os\n"
        "def is_open(number):\n"
        "    try: os.fstat(number)\n"
        "    except OSError: return False\n"
        "    return True\n"
        "seen = list(map(is_open, range(3)))\n"
        "with open('seen', 'w') as file: print(seen, file=file)\n"
    )
    for redirections, seen in [("<&- >&- 2>&-", [False] * 3), (">&-", [True, False, True]), ("", [True] * 3)]:
        line = subprocess.list2cmdline([str(command()), *words, str(python()), "-c"]) + f' "$PROGRAM" {redirections}'
        subprocess.run(
            line, shell=True, env={**environment, "PROGRAM": program}, cwd=tmp_path, timeout=120,
            stdin=subprocess.DEVNULL, capture_output=True,
        )
        assert (tmp_path / "seen").read_text() == f"{seen}\n", redirections


def test_python_dash_m_is_the_same_command(run):
    seen = look(run(python(), "-m", "jitlisten", "run", "--", python(), LOOK))
    assert seen["self"]["library"] and not seen["child"]["library"]


@pytest.mark.parametrize("words, said", [(["--sinks", "nonsense", "--", "true"], "unknown sink"), ([], "required")])
def test_bad_input_is_one_sentence(run, words, said):
    done = run(command(), "run", *words, status=2)
    assert said in done.stderr and done.stdout == ""


def test_no_lines(start):
    program = start(command(), "run", "--no-lines", "--", python(), KERNEL)
    environ = open(f"/proc/{program.pid}/environ").read().split("\0")
    assert not any("_site" in pair for pair in environ)
    wait_for(lambda: "__main__.burn" in perf_map(program.pid), "the perf map")


def test_a_static_program_is_named_as_one(run, start, tmp_path):
    source = tmp_path / "static.c"
    source.write_text(
        '#include <stdio.h>\n#include <unistd.h>\nint main(int n, char **w) { puts("ready"); fflush(stdout); if (n > 1)'
        ' pause(); return !w; }\n'
    )
    run("cc", "-static", "-o", tmp_path / "static", source)
    ran = run(command(), "run", "--", tmp_path / "static")
    assert ran.stdout == "ready\n" and "is statically linked, so nothing can be preloaded into it" in ran.stderr
    looked_at = run(command(), "doctor", start(tmp_path / "static", "waits").pid, status=None)
    assert "is statically linked: nothing can be preloaded or attached" in looked_at.stdout
    assert "in front of the command" not in looked_at.stdout and "try again" not in looked_at.stdout
