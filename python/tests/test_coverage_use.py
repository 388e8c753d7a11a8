"""The user's commands stay as they are: configuration files, reports, caches, children, contexts, pytest's plugins."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.dirname(HERE)

PROGRAM = """
import sys
from numba import njit

@njit(cache="cache" in sys.argv)
def compiled(x):
    if x > 3:
        return x * 2
    return x - 1

if __name__ == "__main__":
    print(compiled(1), sum(compiled.stats.cache_hits.values()))
"""
MISSING = [8]


@pytest.fixture
def place(tmp_path):
    (tmp_path / "prog.py").write_text(PROGRAM)
    (tmp_path / ".coveragerc").write_text("[run]\nplugins = jitlisten.coverage\n")
    return tmp_path


def run(place, *arguments, status=0, **environment):
    environment = dict(os.environ, PYTHONPATH=PACKAGE, PYTHONDONTWRITEBYTECODE="1", **environment)
    done = subprocess.run(
        [sys.executable, "-m", *map(str, arguments)],
        cwd=place,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done


def reported(place, name="prog.py"):
    run(place, "coverage", "json", "-o", "out.json")
    return json.loads((place / "out.json").read_text())["files"][name]


def missing(place, name="prog.py"):
    return reported(place, name)["missing_lines"]


@pytest.mark.parametrize(
    "name, text",
    [
        ("setup.cfg", "[coverage:run]\nplugins = jitlisten.coverage\n"),
        ("tox.ini", "[coverage:run]\nplugins = jitlisten.coverage\n"),
        ("pyproject.toml", '[tool.coverage.run]\nplugins = ["jitlisten.coverage"]\n'),
    ],
)
def test_each_file_of_configuration(place, name, text):
    (place / ".coveragerc").unlink()
    (place / name).write_text(text)
    run(place, "coverage", "run", "prog.py")
    assert missing(place) == MISSING


def test_every_report(place):
    run(place, "coverage", "run", "--branch", "prog.py")
    assert (
        " 1 " in run(place, "coverage", "report", "-m").stdout.splitlines()[2]
        and "8" in run(place, "coverage", "report", "-m").stdout
    )
    assert 'number="8" hits="0"' in (run(place, "coverage", "xml"), (place / "coverage.xml").read_text())[1]
    run(place, "coverage", "html")
    assert "DA:8,0" in (run(place, "coverage", "lcov"), (place / "coverage.lcov").read_text())[1]
    run(place, "coverage", "report", "--fail-under=99", status=2)
    (place / "prog.py").write_text(PROGRAM.replace("x * 2", "x * 2  # pragma: no cover"))
    assert missing(place) == []


def test_append_and_combine(place):
    (place / "other.py").write_text("from prog import compiled\ncompiled(5)\n")
    run(place, "coverage", "run", "prog.py")
    run(place, "coverage", "run", "--append", "other.py")
    assert missing(place) == []
    for name in ("prog.py", "other.py"):
        run(place, "coverage", "run", "-p", name)
    run(place, "coverage", "combine")
    assert missing(place) == []


def test_cached_code(place):
    """Runs alternate; code that was compiled while measuring never serves a run that does not measure."""
    for hits, arguments in (
        ("0", ["coverage", "run"]),
        ("1", ["coverage", "run"]),
        ("0", []),
        ("1", []),
        ("1", ["coverage", "run"]),
    ):
        (place / ".coverage").unlink() if (place / ".coverage").exists() else None
        done = run(place, *(arguments + ["prog.py"] if arguments else ["prog"]), "cache")
        assert done.stdout.split() == ["0", hits]
        if arguments:
            assert missing(place) == MISSING
    done = run(place, "coverage", "run", "--branch", "prog.py", "cache")
    assert done.stdout.split() == ["0", "1"]


def test_cached_code_of_another_text(place):
    """Numba does not notice that the file of a callee has changed; the lines would be wrong."""
    (place / "callee.py").write_text(
        "from numba import njit\n@njit\ndef g(x):\n    if x:\n        return 1\n    return 2\n"
    )
    (place / "prog.py").write_text(
        "from numba import njit\nfrom callee import g\n@njit(cache=True)\ndef f(x):\n    return g(x)\nf(1)\n"
    )
    run(place, "coverage", "run", "prog.py")
    assert missing(place, "callee.py") == [6]
    (place / "callee.py").write_text("\n\n" + (place / "callee.py").read_text())
    run(place, "coverage", "run", "prog.py")
    assert missing(place, "callee.py") == [8]


def test_a_forked_child_that_does_not_return(place):
    (place / "prog.py").write_text(
        PROGRAM
        + "    import os\n    pid = os.fork()\n    if not pid:\n        compiled(5)\n        os._exit(0)\n   "
        " os.waitpid(pid, 0)\n"
    )
    run(place, "coverage", "run", "prog.py")
    assert 8 not in missing(place)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(place, method):
    (place / ".coveragerc").write_text(
        "[run]\nplugins = jitlisten.coverage\nconcurrency = multiprocessing\nparallel = true\n"
    )
    (place / "start.py").write_text(textwrap.dedent("""
        import multiprocessing
        from prog import compiled
        def work():
            compiled(5)
        if __name__ == "__main__":
            child = multiprocessing.get_context(%r).Process(target=work)
            child.start()
            child.join()
        """) % method)
    run(place, "coverage", "run", "start.py")
    run(place, "coverage", "combine")
    assert missing(place) == [9, 12]


def test_threads(place):
    (place / "prog.py").write_text(
        PROGRAM
        + "    import threading\n    t = threading.Thread(target=compiled, args=(5,))\n    t.start()\n    t.join()\n"
    )
    run(place, "coverage", "run", "prog.py")
    assert missing(place) == []


TESTS = """
from prog import compiled

def test_small():
    assert compiled(1) == 0

def test_large():
    assert compiled(5) == 10
"""


def contexts_of(place):
    run(place, "coverage", "json", "--show-contexts", "-o", "out.json")
    found = json.loads((place / "out.json").read_text())["files"]["prog.py"]["contexts"]
    return [
        {context.split(".")[-1].split("::")[-1].split("|")[0] for context in found[line] if context}
        for line in ("8", "9")
    ]


def test_contexts_of_tests(place):
    (place / "test_it.py").write_text(TESTS)
    (place / ".coveragerc").write_text("[run]\nplugins = jitlisten.coverage\ndynamic_context = test_function\n")
    run(place, "coverage", "run", "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert contexts_of(place) == [{"test_large"}, {"test_small"}]


def test_pytest_cov(place):
    (place / "test_it.py").write_text(TESTS)
    run(
        place,
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--cov=prog",
        "--cov-branch",
        "--cov-context=test",
        "--cov-report=",
    )
    assert missing(place) == [12]
    assert contexts_of(place) == [{"test_large"}, {"test_small"}]


def test_pytest_xdist(place):
    (place / "test_it.py").write_text(TESTS)
    run(place, "pytest", "-q", "-p", "no:cacheprovider", "-n2", "--cov=.", "--cov-branch", "--cov-report=")
    assert missing(place) == [12]


def test_no_file_of_ours_is_measured(place):
    run(place, "coverage", "run", "prog.py")
    run(place, "coverage", "json", "-o", "out.json")
    assert set(json.loads((place / "out.json").read_text())["files"]) == {"prog.py"}


def test_what_cannot_be_measured_is_named_once(place):
    (place / "prog.py").write_text(textwrap.dedent("""
        from numba import njit
        text = "def from_text(x):\\n    return x + 1\\n"
        exec(compile(text, "<text>", "exec"))
        from_text = njit(from_text)
        from_text(1)
        from_text(1.0)
        """))
    said = run(place, "coverage", "run", "prog.py").stderr
    assert said.count("from_text") == 1 and "without a file" in said


def test_what_was_compiled_before_is_named(place):
    (place / "start.py").write_text(textwrap.dedent("""
        import coverage
        from prog import compiled
        compiled(1)
        measured = coverage.Coverage()
        measured.start()
        compiled(1)
        measured.stop()
        measured.save()
        """))
    environment = dict(os.environ, PYTHONPATH=PACKAGE)
    done = subprocess.run(
        [sys.executable, "start.py"], cwd=place, env=environment, stderr=subprocess.PIPE, text=True, check=True
    )
    assert "compiled" in done.stderr and "before" in done.stderr


def test_coverage_may_start_during_a_compilation(place):
    """That function has no marks, whoever compiles it, and is not in the cache as if it had."""
    (place / "start.py").write_text(textwrap.dedent("""
        import sys
        import coverage
        from numba.core import lowering
        from prog import compiled
        measured, original = coverage.Coverage(), lowering.Lower.lower_inst
        def lower_inst(self, inst):
            lowering.Lower.lower_inst = original
            measured.start()
            original(self, inst)
        if "during" in sys.argv:
            lowering.Lower.lower_inst = lower_inst
        else:
            measured.start()
        print(compiled(1), sum(compiled.stats.cache_hits.values()))
        measured.stop()
        measured.save()
        """))

    def start(*words):
        environment = dict(os.environ, PYTHONPATH=PACKAGE, PYTHONDONTWRITEBYTECODE="1")
        words = [sys.executable, "start.py", "cache", *words]
        return subprocess.run(words, cwd=place, env=environment, capture_output=True, text=True, check=True)

    during = start("during")
    assert during.stdout == "0 0\n" and "before coverage.py started): prog.compiled" in during.stderr
    after = start()
    assert after.stdout == "0 0\n" and "before" not in after.stderr
    assert 8 in missing(place) and 9 not in missing(place)


def test_a_numba_that_cannot_be_patched(place):
    """Its code has no stores, and the user reads why."""
    (place / "breaks.py").write_text(textwrap.dedent("""
        from jitlisten._numba import seams
        def coverage_init(registry, options):
            seams.Seam.ADD_MODULE._value_ = "numba.core.codegen", "CPUCodeLibrary.gone"
        """))
    (place / ".coveragerc").write_text("[run]\nplugins = breaks\n    jitlisten.coverage\n")
    done = run(place, "coverage", "run", "prog.py")
    assert done.stdout.split() == ["0", "0"]
    assert "No compiled code is measured" in done.stderr and "gone" in done.stderr


def test_a_stencil_in_a_parallel_function(place):
    (place / "kernels.py").write_text(textwrap.dedent("""
        from numba import stencil
        @stencil
        def kernel(a):
            total = a[0] + a[1]
            if a[0] > 5:
                total += 1.0
            if a[0] > 500:
                total += 2.0
            return total
        """))
    (place / "prog.py").write_text(textwrap.dedent("""
        import numpy as np
        from numba import njit
        from kernels import kernel
        @njit(parallel=True)
        def compiled(a):
            return kernel(a)
        compiled(np.arange(10.0))
        """))
    run(place, "coverage", "run", "--branch", "prog.py")
    assert missing(place, "kernels.py") == [9]
    found = reported(place, "kernels.py")
    assert found["missing_branches"] == [[8, 9]] and [8, 10] in found["executed_branches"], found


def test_without_a_configuration_below_the_command(place):
    """What `jitlisten coverage` sets, without it."""
    (place / ".coveragerc").unlink()
    site = os.path.join(PACKAGE, "jitlisten", "_site")
    code = "import subprocess, sys; subprocess.run([sys.executable, '-m', 'coverage', 'run', 'prog.py'], check=True)"
    environment = dict(os.environ, PYTHONPATH=site, JITLISTEN_COVERAGE="1")
    subprocess.run([sys.executable, "-c", code], cwd=place, env=environment, check=True)
    assert missing(place) == MISSING
