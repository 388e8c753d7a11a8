"""Programs that a script, a version manager or another Python starts: which is recorded, and into which file."""

import json
import os
import re

import pytest
from conftest import command, python, require_tool

KERNEL = """
import sys, time
import numba
import numpy as np

@numba.njit
def powers(values):
    total = 0.0
    for value in values:
        total += value**1.5
    return total

values = np.random.rand(100_000)
powers(values)
until = time.process_time() + 0.5
while time.process_time() < until:
    powers(values)
print(*sys.argv[1:])
"""

#: A shell that takes less than half a second itself, and starts short tools.
TOOLS = "i=0; while [ $i -lt 3000 ]; do i=$((i + 1)); done; cat /dev/null; ls / > /dev/null\n"

WRAPPERS = {
    "exec": "#!/bin/sh\nexec PYTHON program.py word\n",
    "exec env": "#!/bin/sh\nexec env -u NOTHING PYTHON program.py word\n",
    "exec sh": "#!/bin/sh\nexec sh -c 'exec PYTHON program.py word'\n",
    "child": "#!/bin/sh\n" + TOOLS + "PYTHON program.py word\n",
    "bash": "#!/bin/bash\n" + TOOLS + "bash -c 'PYTHON program.py word; :'\n" + TOOLS,
    # As `pipenv run` and `poetry run` do.
    "Python": "#!PYTHON\nimport os\nos.execvp('PYTHON', ['PYTHON', 'program.py', 'word'])\n",
    "Python with an environment": "#!PYTHON\nimport os\n"
    "os.execve('PYTHON', ['PYTHON', 'program.py', 'word'], dict(os.environ, WORD='1', LD_PRELOAD=''))\n",
    "Python and a script": "#!PYTHON\nimport os\nos.execl('second', 'second')\n",
    "Python and a child of a script": "#!PYTHON\nimport os\nos.execl('third', 'third')\n",
    "Python without an environment": "#!PYTHON\nimport os\nos.execve('PYTHON', ['PYTHON', 'program.py', 'word'], {})\n",
    "PYTHONPATH": "#!/bin/sh\nexport PYTHONPATH=/nowhere:$PYTHONPATH\n"
    "exec PYTHON -c \"import os; os.execl('PYTHON', 'PYTHON', 'program.py', 'word')\"\n",
}


def write_wrapper(directory, text):
    (directory / "program.py").write_text(KERNEL)
    (directory / "second").write_text("#! /bin/sh\nexec PYTHON program.py word\n".replace("PYTHON", str(python())))
    (directory / "third").write_text("#!/bin/sh\nPYTHON program.py word\n:\n".replace("PYTHON", str(python())))
    wrapper = directory / "wrapper"
    # Not the name of the variable.
    wrapper.write_text(re.sub(r"\bPYTHON\b", str(python()), text))
    for script in [wrapper, directory / "second", directory / "third"]:
        script.chmod(0o755)
    return wrapper


def recordings(directory):
    return sorted(path.name for path in directory.glob("prof.data*") if path.is_file())


def powers_share(run, path):
    """Share of the samples in `pow` below the compiled function, by our reader, and by perf."""
    stacks = run(command(), "export", "-f", "collapsed", path).stdout.splitlines()
    assert not [stack for stack in stacks if "[unknown]" in stack]
    weights = {stack: int(stack.rsplit(" ", 1)[1]) for stack in stacks}
    inside = sum(weight for stack, weight in weights.items() if "powers" in stack and ";pow" in stack)
    text = run("perf", "script", "-i", path, "-F", "period,ip,sym").stdout
    samples = [sample for sample in text.split("\n\n") if sample.strip()]
    # On a busy machine, samples stand for different times.
    periods = [int(sample.split()[0]) for sample in samples]
    perf_inside = sum(period for period, sample in zip(periods, samples) if "powers" in sample and " pow@" in sample)
    return inside / sum(weights.values()), perf_inside / sum(periods), len(samples)


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_the_program_of_a_wrapper_is_recorded(run, tmp_path, wrapper):
    require_tool("perf")
    script = write_wrapper(tmp_path, WRAPPERS[wrapper])
    for _ in range(2):
        result = run(command(), "record", "-o", "prof.data", "--", script)
        assert result.stdout == "word\n" and "jitlisten" not in result.stderr, result
    # The second recording has replaced the first; tools have left nothing. A Python that starts a script, which starts
    # the program as a child, has its own.
    kept = [name for name in recordings(tmp_path) if not name[10:].isdigit()]
    assert kept == ["prof.data", "prof.data.old"]
    assert len(recordings(tmp_path)) == (4 if "child of a script" in wrapper else 2)
    ours, perfs, count = powers_share(run, "prof.data")
    assert ours > 0.1 and abs(ours - perfs) < 4 * (0.25 / count) ** 0.5 + 0.02, (ours, perfs, count)
    report = json.loads(run(command(), "lines", "--json", "-", "prof.data").stdout)
    [lines] = [file["lines"] for file in report["files"] if file["path"].endswith("program.py")]
    assert 10 in {line["line"] for line in lines if line["total"]}, "stock Numba's line table is on"


def test_programs_of_a_script_keep_their_recordings(run, tmp_path):
    python_twice = "PYTHON program.py one && PYTHON -c pass && PYTHON program.py two && PYTHON program.py three\n"
    script = write_wrapper(tmp_path, "#!/bin/sh\n" + TOOLS + python_twice)
    run(command(), "record", "-o", "prof.data", "--", python(), "program.py", "before")
    result = run(command(), "record", "-o", "prof.data", "--", script)
    assert result.stdout == "one\ntwo\nthree\n"
    files = recordings(tmp_path)
    words = {name: run("perf", "report", "--header-only", "-i", name).stdout for name in files}
    found = {
        name: word
        for name, header in words.items()
        for word in ["before", "one", "two", "three"]
        if f" {word} \n" in header
    }
    assert found["prof.data.old"] == "before" and found["prof.data"] == "three", found
    assert sorted(found.values()) == ["before", "one", "three", "two"], found
    text = run(command(), "lines", "prof.data").stdout
    others = len(files) - 2
    assert f"{others} other processes of the command have their own recordings: prof.data.PID" in text, text
    # All are shown, if `lines` runs the command itself.
    report = json.loads(
        run(command(), "lines", "--json", "-", "-o", "prof.data", "--", script).stdout.split("\n", 3)[3]
    )
    assert len(report["processes"]) >= 3, report["processes"]


def test_a_slow_shell_is_recorded_beside_its_program(run, tmp_path):
    loop = "i=0; while [ $i -lt 400000 ]; do i=$((i + 1)); done\n"
    script = write_wrapper(tmp_path, "#!/bin/bash\n" + loop + "PYTHON program.py word\n")
    run(command(), "record", "-o", "prof.data", "--", script)
    name, shell = recordings(tmp_path)
    assert name == "prof.data" and shell.startswith("prof.data."), shell
    assert "bash" in run(command(), "lines", shell).stdout.splitlines()[0]
    assert "program.py" in run(command(), "lines", "prof.data").stdout.splitlines()[0]


def test_the_environment_of_other_children_is_unchanged(run, tmp_path):
    """Only `exec` in the process of the program continues the recording: a child after `fork` has the environment that
    the user's shell gave."""
    source = """
import os, subprocess, sys
names = ["LD_PRELOAD", "JITLISTEN_RUN", "PYTHONPATH"]
show = [sys.executable, "-c", f"import os; print([os.environ.get(name) for name in {names}])"]
subprocess.run(show, check=True)
if os.fork() == 0:
    os.execv(show[0], show)
os.wait()
print(open("/proc/self/maps").read().count("libjitlisten.so") > 0, flush=True)
os.execv("/bin/sh", ["sh", "-c", 'echo "$JITLISTEN_RUN" | cut -c 1-7'])
"""
    (tmp_path / "program.py").write_text(source)
    result = run(command(), "record", "-o", "prof.data", "--", python(), "program.py")
    assert result.stdout == "[None, None, None]\n" * 2 + "True\nprogram\n"


#: What `exec` does for files that cannot be executed, and for addresses that cannot be read.
FAILING = """
import ctypes, fcntl, os
libc = ctypes.CDLL(None, use_errno=True)
environment = (ctypes.c_char_p * 2)(b"A=1", None)
arguments = (ctypes.c_char_p * 2)(b"a", None)

def show(*call):
    print(libc.execve(*call), ctypes.get_errno())

os.mkfifo("fifo", 0o755)
for name, text in [("of-fifo", "#!fifo\\n"), ("of-nothing", "#!/nonexistent\\n"), ("empty", "")]:
    with open(name, "w", opener=lambda path, flags: os.open(path, flags, 0o755)) as file:
        file.write(text)
for name in [b"fifo", b"of-fifo", b"of-nothing", b".", b"/dev/null", b"/etc/passwd", b"nonexistent"]:
    show(name, arguments, environment)
show(ctypes.c_void_p(8), arguments, environment)
show(b"/bin/true", arguments, ctypes.c_void_p(8))
# A file that this process has locked, and has open for writing.
locked = open("locked", "w", opener=lambda path, flags: os.open(path, flags, 0o755))
fcntl.lockf(locked, fcntl.LOCK_EX)
show(b"locked", arguments, environment)
child = os.fork()
if child == 0:
    try:
        fcntl.lockf(open("locked", "w"), fcntl.LOCK_EX | fcntl.LOCK_NB)
        print("free")
    except OSError as error:
        print("locked", error.errno, flush=True)
    os._exit(0)
os.waitpid(child, 0)
# As large as the kernel permits: our variables must not make it fail.
size, limit = 100, os.sysconf("SC_ARG_MAX")
while limit > 0:
    child = os.fork()
    if child == 0:
        try:
            os.execve("/bin/true", ["true"] + ["x" * 100_000] * size, {"A": "1"})
        except OSError as error:
            os._exit(1)
    if os.waitpid(child, 0)[1] != 0:
        break
    size += 1
print("done", flush=True)
os.execve("/bin/echo", ["echo"] + ["word"], {"A": "1"})
"""


def test_exec_fails_as_it_would_without_us(run, tmp_path):
    (tmp_path / "program.py").write_text(FAILING)
    results = []
    for wrapper in [[], [command(), "record", "-o", tmp_path / "prof.data", "--"]]:
        directory = tmp_path / str(len(results))
        directory.mkdir()
        result = run("sh", "-c", f'cd {directory} && exec "$@"', "sh", *wrapper, python(), tmp_path / "program.py")
        results.append((result.stdout, result.stderr))
    assert results[0] == results[1]
    assert results[0][0].endswith("done\nword\n") and "locked 11\n" in results[0][0], results[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_a_program_keeps_its_capabilities_as_another_user(run, tmp_path):
    """libc aborts if `setgroups` succeeds in one thread of the process and fails in another."""
    require_tool("setpriv")
    become = ["setpriv", "--reuid=65534", "--clear-groups", "--", "id", "-u"]
    (tmp_path / "program.py").write_text(f"import os\nos.execvp('setpriv', {become})\n")
    tmp_path.chmod(0o777)
    for program in [become, [python(), "program.py"]]:
        result = run(command(), "record", "-o", "prof.data", "--", *program)
        # The recording cannot continue: the other user may not write to the file.
        assert result.stdout == "65534\n"


C_PROGRAM = """
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
int main(int argc, char **argv) {
    for (int i = 0; i < atoi(argv[2]); i++)
        sleep(1);
    while (clock() < atof(argv[1]) * CLOCKS_PER_SEC)
        ;
}
"""


@pytest.mark.parametrize(
    ("options", "words", "expected"),
    [
        (["-r", "1000"], ["0.3", "0"], 0.3),
        ([], ["0.3", "0"], 0.3),
        (["--wall"], ["0", "2"], 2.0),
    ],
)
@pytest.mark.parametrize("launcher", [["timeout", "60"], ["sh", "-c", '"$@"; :', "sh"]], ids=["timeout", "sh"])
def test_a_c_program_of_a_launcher_is_recorded(run, tmp_path, options, words, expected, launcher):
    require_tool("cc")
    (tmp_path / "program.c").write_text(C_PROGRAM)
    run("cc", "-O1", "program.c", "-o", "program")
    run(command(), "record", *options, "-o", "prof.data", "--", *launcher, tmp_path / "program", *words)
    [name] = recordings(tmp_path)
    report = json.loads(run(command(), "lines", "--json", "-", name).stdout)
    assert abs(report["weight"] / 1e9 - expected) < 0.15, report["weight"]
