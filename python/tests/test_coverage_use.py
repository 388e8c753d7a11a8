"""Existing coverage workflows must keep working: configuration files, reports, caches, child processes, contexts,
pytest plugins."""

import json
import os
import re
import subprocess
import sys
import textwrap
import zipfile

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
MISSING_LINES = [8]


@pytest.fixture
def project(tmp_path):
    (tmp_path / "prog.py").write_text(PROGRAM)
    (tmp_path / ".coveragerc").write_text("[run]\nplugins = jitlisten.coverage\n")
    return tmp_path


def run(project, *arguments, status=0, **environment):
    environment = dict(os.environ, PYTHONPATH=PACKAGE, PYTHONDONTWRITEBYTECODE="1", **environment)
    result = subprocess.run(
        [sys.executable, "-m", *map(str, arguments)],
        cwd=project,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert result.returncode == status, result.stdout + result.stderr
    return result


def file_report(project, name="prog.py"):
    run(project, "coverage", "json", "-o", "out.json")
    return json.loads((project / "out.json").read_text())["files"][name]


def missing_lines(project, name="prog.py"):
    return file_report(project, name)["missing_lines"]


@pytest.mark.parametrize(
    "name, content",
    [
        ("setup.cfg", "[coverage:run]\nplugins = jitlisten.coverage\n"),
        ("tox.ini", "[coverage:run]\nplugins = jitlisten.coverage\n"),
        ("pyproject.toml", '[tool.coverage.run]\nplugins = ["jitlisten.coverage"]\n'),
    ],
)
def test_each_file_of_configuration(project, name, content):
    (project / ".coveragerc").unlink()
    (project / name).write_text(content)
    run(project, "coverage", "run", "prog.py")
    assert missing_lines(project) == MISSING_LINES


def test_every_report(project):
    run(project, "coverage", "run", "--branch", "prog.py")
    assert (
        " 1 " in run(project, "coverage", "report", "-m").stdout.splitlines()[2]
        and "8" in run(project, "coverage", "report", "-m").stdout
    )
    assert 'number="8" hits="0"' in (run(project, "coverage", "xml"), (project / "coverage.xml").read_text())[1]
    run(project, "coverage", "html")
    assert "DA:8,0" in (run(project, "coverage", "lcov"), (project / "coverage.lcov").read_text())[1]
    run(project, "coverage", "report", "--fail-under=99", status=2)
    (project / "prog.py").write_text(PROGRAM.replace("x * 2", "x * 2  # pragma: no cover"))
    assert missing_lines(project) == []


def test_append_and_combine(project):
    (project / "other.py").write_text("from prog import compiled\ncompiled(5)\n")
    run(project, "coverage", "run", "prog.py")
    run(project, "coverage", "run", "--append", "other.py")
    assert missing_lines(project) == []
    for name in ("prog.py", "other.py"):
        run(project, "coverage", "run", "-p", name)
    run(project, "coverage", "combine")
    assert missing_lines(project) == []


def test_cached_code(project):
    """Alternates measured and unmeasured runs. Code compiled for a measured run must never be used in an unmeasured
    run."""
    for hits, arguments in (
        ("0", ["coverage", "run"]),
        ("1", ["coverage", "run"]),
        ("0", []),
        ("1", []),
        ("1", ["coverage", "run"]),
    ):
        (project / ".coverage").unlink() if (project / ".coverage").exists() else None
        result = run(project, *(arguments + ["prog.py"] if arguments else ["prog"]), "cache")
        assert result.stdout.split() == ["0", hits]
        if arguments:
            assert missing_lines(project) == MISSING_LINES
    result = run(project, "coverage", "run", "--branch", "prog.py", "cache")
    assert result.stdout.split() == ["0", "1"]


def test_cached_code_of_another_text(project):
    """Numba does not detect that a callee's file has changed, so its cached code would report wrong lines."""
    (project / "callee.py").write_text(
        "from numba import njit\n@njit\ndef g(x):\n    if x:\n        return 1\n    return 2\n"
    )
    (project / "prog.py").write_text(
        "from numba import njit\nfrom callee import g\n@njit(cache=True)\ndef f(x):\n    return g(x)\nf(1)\n"
    )
    run(project, "coverage", "run", "prog.py")
    assert missing_lines(project, "callee.py") == [6]
    (project / "callee.py").write_text("\n\n" + (project / "callee.py").read_text())
    run(project, "coverage", "run", "prog.py")
    assert missing_lines(project, "callee.py") == [8]


def test_a_forked_child_that_does_not_return(project):
    (project / "prog.py").write_text(
        PROGRAM + "    import os\n    pid = os.fork()\n    if not pid:\n        compiled(5)\n        os._exit(0)\n   "
        " os.waitpid(pid, 0)\n"
    )
    run(project, "coverage", "run", "prog.py")
    assert 8 not in missing_lines(project)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(project, method):
    (project / ".coveragerc").write_text(
        "[run]\nplugins = jitlisten.coverage\nconcurrency = multiprocessing\nparallel = true\n"
    )
    (project / "start.py").write_text(
        textwrap.dedent("""
        import multiprocessing
        from prog import compiled
        def work():
            compiled(5)
        if __name__ == "__main__":
            child = multiprocessing.get_context(%r).Process(target=work)
            child.start()
            child.join()
        """)
        % method
    )
    run(project, "coverage", "run", "start.py")
    run(project, "coverage", "combine")
    assert missing_lines(project) == [9, 12]


def test_threads(project):
    (project / "prog.py").write_text(
        PROGRAM
        + "    import threading\n    t = threading.Thread(target=compiled, args=(5,))\n    t.start()\n    t.join()\n"
    )
    run(project, "coverage", "run", "prog.py")
    assert missing_lines(project) == []


def test_threads_do_not_share_stores_of_set_marks(project):
    """Runs compiled code while its marks are read-only, so that a store would end the process."""
    (project / "start.py").write_text(
        textwrap.dedent("""
        import ctypes
        import mmap
        from jitlisten._coverage import marks
        from prog import compiled
        compiled(1)
        (region,) = marks._regions
        address, protect = ctypes.c_void_p(region._address), ctypes.CDLL(None).mprotect
        assert protect(address, mmap.PAGESIZE, mmap.PROT_READ) == 0
        compiled(1)
        assert protect(address, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE) == 0
        """)
    )
    run(project, "coverage", "run", "start.py")
    assert missing_lines(project) == [8, 12]


TESTS = """
from prog import compiled

def test_small():
    assert compiled(1) == 0

def test_large():
    assert compiled(5) == 10
"""


def list_contexts(project):
    run(project, "coverage", "json", "--show-contexts", "-o", "out.json")
    contexts = json.loads((project / "out.json").read_text())["files"]["prog.py"]["contexts"]
    return [
        {context.split(".")[-1].split("::")[-1].split("|")[0] for context in contexts[line] if context}
        for line in ("8", "9")
    ]


def test_contexts_of_tests(project):
    (project / "test_it.py").write_text(TESTS)
    (project / ".coveragerc").write_text("[run]\nplugins = jitlisten.coverage\ndynamic_context = test_function\n")
    run(project, "coverage", "run", "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert list_contexts(project) == [{"test_large"}, {"test_small"}]


def test_pytest_cov(project):
    (project / "test_it.py").write_text(TESTS)
    run(
        project,
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--cov=prog",
        "--cov-branch",
        "--cov-context=test",
        "--cov-report=",
    )
    assert missing_lines(project) == [12]
    assert list_contexts(project) == [{"test_large"}, {"test_small"}]


def test_pytest_xdist(project):
    (project / "test_it.py").write_text(TESTS)
    run(project, "pytest", "-q", "-p", "no:cacheprovider", "-n2", "--cov=.", "--cov-branch", "--cov-report=")
    assert missing_lines(project) == [12]


def test_no_file_of_ours_is_measured(project):
    run(project, "coverage", "run", "prog.py")
    run(project, "coverage", "json", "-o", "out.json")
    assert set(json.loads((project / "out.json").read_text())["files"]) == {"prog.py"}


def test_what_cannot_be_measured_is_named_once(project):
    (project / "prog.py").write_text(
        textwrap.dedent("""
        import os
        from numba import njit
        text = "def from_text(x):\\n    return x + 1\\n"
        exec(compile(text, "<text>", "exec"))
        exec(compile(text.replace("from_text", "from_nowhere"), "moved/file.py", "exec"))
        from_text, from_nowhere = njit(from_text), njit(from_nowhere)
        os.mkdir("empty")
        os.chdir("empty")
        for function in from_text, from_nowhere:
            function(1)
            function(1.0)
        """)
    )
    errors = run(project, "coverage", "run", "prog.py").stderr
    assert errors.count("from_text") == errors.count("from_nowhere") == 1
    assert "(code without a file): __main__.from_text " in errors
    assert "(the file did not exist when the code was compiled): __main__.from_nowhere " in errors


GENERATED = """
import os
import sys
from numba import njit
text = "def generated(x):\\n    if x:\\n        return 1\\n    return 2\\n"
path = os.path.join(os.getcwd(), "directory", "generated.py")
os.mkdir("directory")

def compile_again():
    namespace = {}
    exec(compile(text, %s, "exec"), namespace)
    return njit(namespace["generated"])

"""


def test_a_relative_name_that_is_found_by_the_module_search_path(project):
    (project / "prog.py").write_text(
        GENERATED % "'generated.py'" + "open(path, 'w').write(text)\n"
        "sys.path.append(os.path.dirname(path))\nassert compile_again()(1) == 1\n"
    )
    assert "not-measured" not in run(project, "coverage", "run", "prog.py").stderr
    assert missing_lines(project, os.path.join("directory", "generated.py")) == [4]


def test_a_file_that_is_written_after_its_code_is_compiled(project):
    (project / "prog.py").write_text(
        GENERATED % "path" + "assert compile_again()(1) == 1\nopen(path, 'w').write(text)\n"
        "assert compile_again()(0) == 2\n"
    )
    errors = run(project, "coverage", "run", "prog.py").stderr
    assert errors.count("(the file did not exist when the code was compiled): <dynamic>.generated ") == 1
    assert missing_lines(project, os.path.join("directory", "generated.py")) == [3]


ERRORS = """
from numba import njit, types
from numba.extending import intrinsic, overload, overload_attribute

def called(x):
    pass

@overload(called)
def overloaded(x):
    print("overload", x)
    if isinstance(x, types.Integer):
        raise TypeError("no integers")

@overload_attribute(types.Float, "missing")
def attribute(x):
    print("attribute", x)
    raise TypeError("no such attribute")

@intrinsic
def emitted(typingctx, x):
    def codegen(context, builder, signature, args):
        print("codegen", x)
        raise NotImplementedError("not emitted")
    return x(x), codegen

@njit
def calls(x):
    return called(x)

@njit
def reads(x):
    return x.missing

@njit
def emits(x):
    return emitted(x)

@njit
def adds(x):
    if x:
        x += 1
    return "a" + x

@njit
def undetermined(x):
    last = None
    for i in range(x):
        total = last + 1  # Fails until the other type of the variable is known.
        last = x
        values = []

@njit
def adds_again(x):
    return "a" + x

@njit
def calls_another(x):
    return adds_again(x)

for function, argument in (
    (calls, 1), (calls, 1.5), (reads, 1.5), (emits, 1), (undetermined, 1), (adds, 1), (adds, 1), (adds_again, 1),
    (calls_another, 2.5),
):
    try:
        function(argument)
    except Exception as error:
        print(function.__name__, type(error), error, error.__cause__, error.__context__)
"""


def test_errors_and_side_effects_of_compilations_are_those_without_coverage(project):
    """A function is only compiled again if marks may be the cause of the error."""
    (project / "errors.py").write_text(ERRORS)

    def without_addresses(text):
        return re.sub("0x[0-9a-f]+", "0x", text)

    expected = without_addresses(run(project, "errors").stdout)
    assert without_addresses(run(project, "coverage", "run", "--branch", "errors.py").stdout) == expected


def test_what_was_compiled_before_is_named(project):
    (project / "start.py").write_text(
        textwrap.dedent("""
        import coverage
        from prog import compiled
        compiled(1)
        measured = coverage.Coverage()
        measured.start()
        compiled(1)
        measured.stop()
        measured.save()
        """)
    )
    environment = dict(os.environ, PYTHONPATH=PACKAGE)
    result = subprocess.run(
        [sys.executable, "start.py"], cwd=project, env=environment, stderr=subprocess.PIPE, text=True, check=True
    )
    assert "compiled" in result.stderr and "before" in result.stderr


def test_coverage_may_start_during_a_compilation(project):
    """A function that is being compiled when coverage starts is not instrumented, and its cache entry is not marked as
    instrumented."""
    (project / "start.py").write_text(
        textwrap.dedent("""
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
        """)
    )

    def run_start(*options):
        environment = dict(os.environ, PYTHONPATH=PACKAGE, PYTHONDONTWRITEBYTECODE="1")
        command = [sys.executable, "start.py", "cache", *options]
        return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=True)

    result_during = run_start("during")
    assert result_during.stdout == "0 0\n" and "before coverage.py started): prog.compiled" in result_during.stderr
    result_after = run_start()
    assert result_after.stdout == "0 0\n" and "before" not in result_after.stderr
    assert 8 in missing_lines(project) and 9 not in missing_lines(project)


def test_a_numba_that_cannot_be_patched(project):
    """If a patch fails, compiled code is not instrumented, and the error output states the reason."""
    (project / "breaks.py").write_text(
        textwrap.dedent("""
        from jitlisten._numba import seams
        def coverage_init(registry, options):
            seams.Seam.ADD_MODULE._value_ = "numba.core.codegen", "CPUCodeLibrary.gone"
        """)
    )
    (project / ".coveragerc").write_text("[run]\nplugins = breaks\n    jitlisten.coverage\n")
    result = run(project, "coverage", "run", "prog.py")
    assert result.stdout.split() == ["0", "0"]
    assert "No compiled code is measured" in result.stderr and "gone" in result.stderr


def test_a_stencil_in_a_parallel_function(project):
    (project / "kernels.py").write_text(
        textwrap.dedent("""
        from numba import stencil
        @stencil
        def kernel(a):
            total = a[0] + a[1]
            if a[0] > 5:
                total += 1.0
            if a[0] > 500:
                total += 2.0
            return total
        """)
    )
    (project / "prog.py").write_text(
        textwrap.dedent("""
        import numpy as np
        from numba import njit
        from kernels import kernel
        @njit(parallel=True)
        def compiled(a):
            return kernel(a)
        compiled(np.arange(10.0))
        """)
    )
    run(project, "coverage", "run", "--branch", "prog.py")
    assert missing_lines(project, "kernels.py") == [9]
    report = file_report(project, "kernels.py")
    assert report["missing_branches"] == [[8, 9]] and [8, 10] in report["executed_branches"], report


def test_without_a_configuration_below_the_command(project):
    """Runs without `jitlisten coverage`, whose environment variables the test sets itself."""
    (project / ".coveragerc").unlink()
    site = os.path.join(PACKAGE, "jitlisten", "_site")
    code = "import subprocess, sys; subprocess.run([sys.executable, '-m', 'coverage', 'run', 'prog.py'], check=True)"
    environment = dict(os.environ, PYTHONPATH=site, JITLISTEN_COVERAGE="1")
    subprocess.run([sys.executable, "-c", code], cwd=project, env=environment, check=True)
    assert missing_lines(project) == MISSING_LINES


LOOPS_IN_OBJECT_MODE = """
from numba import jit

def object_mode(function):
    return jit(forceobj=True)(function)

@object_mode
def two_exits(power, limit):
    if limit > 100:
        power = 1
    for i in range(100):
        power *= 3
        if i > 90:
            break
        if i > 95: break
    return power

@object_mode
def while_else(x, limit):
    w = 0
    while (w < 4 and
        limit <= 1):
        w += 1
    else:
        v = 0
        while (v < 2 and
            limit <= x):
            v += 1
            raise ValueError
    if limit == 7:
        return x
    return w

for function in two_exits, while_else:
    try:
        result = function(3, 4)
    except ValueError:  # Numba fails to compile some of these, depending on the version of Python.
        result = "refused"
    print(function.__name__, result, [len(overload.lifted) for overload in function.overloads.values()])
"""


def test_loops_are_lifted_as_without_coverage(project):
    """A loop that Numba lifts computes with integers of 64 bits."""
    (project / "loops.py").write_text(LOOPS_IN_OBJECT_MODE)
    expected = run(project, "loops").stdout.splitlines()
    measured = run(project, "coverage", "run", "--branch", "loops.py")
    assert "not-measured" not in measured.stderr
    for without, with_marks in zip(expected, measured.stdout.splitlines()):
        assert "refused" in without or with_marks == without


COMPREHENSIONS = """
import numpy as np
from numba import njit, types

@njit
def lines_below(n):
    return np.array([
        i * 2
        for i in range(n)
    ])

@njit
def with_type(n):
    values = np.array(
        [i * 2
         for i in range(n)],
        dtype=np.float64,
    )
    return values

@njit
def nested(n):
    return np.array([
        [i * j
         for i in range(n)]
        for j in range(n)
    ])

@njit(parallel=True)
def parallel(n):
    return np.array([
        (i if i > 3
         else 2)
        for i in range(n)
    ])

@njit
def with_closure(n):
    offset = n + 1
    def unused():
        return offset
    return np.array([
        i + offset
        for i in range(n)
    ])

for function in lines_below, with_type, nested, parallel, with_closure:
    values = function(5)
    variables = function.overloads[function.signatures[0]].type_annotation.typemap.values()
    print(function.__name__, values.sum(), any(isinstance(variable, types.List) for variable in variables))
"""


def test_arrays_of_comprehensions_are_not_made_of_lists(project):
    """A mark between a comprehension and the call on another line must not keep Numba from making the array at once."""
    (project / "arrays.py").write_text(COMPREHENSIONS)
    expected = run(project, "arrays").stdout
    assert expected.count("False") == 5
    assert run(project, "coverage", "run", "--branch", "arrays.py").stdout == expected


def test_a_function_that_numba_compiles_close_to_the_recursion_limit(project):
    """Blocks for marks lengthen the chain of blocks, along which Numba recurses."""
    branches = "".join("        if n > %d:\n            total += 1\n" % number for number in range(100))
    (project / "long.py").write_text(
        "import sys\nfrom numba import njit\n@njit\ndef long(n):\n    total = 0\n    for i in range(n):\n"
        + branches
        + "    return total\nlong_limit = int(sys.argv[1])\nnjit(lambda n: n + 1)(1)\n"
        "sys.setrecursionlimit(long_limit)\nprint(long(50), sys.getrecursionlimit())\n"
    )
    measured = run(project, "coverage", "run", "long.py", 300, NUMBA_OPT="0")
    assert measured.stdout == "2500 300\n"
    assert "not-measured" not in measured.stderr
    assert missing_lines(project, "long.py") == [8 + 2 * number for number in range(50, 100)]


def test_a_module_in_an_archive(project):
    with zipfile.ZipFile(project / "library.zip", "w") as archive:
        archive.writestr("zipped.py", PROGRAM)
    (project / "start.py").write_text(
        "import sys\nsys.path.insert(0, 'library.zip')\nfrom zipped import compiled\ncompiled(1)\n"
    )
    run(project, "coverage", "run", "start.py")
    assert missing_lines(project, os.path.join("library.zip", "zipped.py")) == [8, 12]


def test_a_module_that_is_not_in_sys_modules_any_more(project):
    (project / "start.py").write_text("import sys\nfrom prog import compiled\ndel sys.modules['prog']\ncompiled(1)\n")
    run(project, "coverage", "run", "--source=prog", "start.py")
    assert missing_lines(project) == [8, 12]


def test_an_inner_measurement_leaves_the_outer_one_as_it_was(project):
    """coverage.py's tracer counts frames: the start and the stop of an inner measurement must have equally many."""
    (project / "start.py").write_text(
        "import coverage\nfrom prog import compiled\ncompiled(1)\ninner = coverage.Coverage(data_file=None)\n"
        "inner.start()\ncompiled(5)\ninner.stop()\ncompiled(1)\n"
    )
    run(project, "coverage", "run", "start.py")
    assert missing_lines(project) == [8, 12] and missing_lines(project, "start.py") == [6, 7]


def test_erased_marks(project):
    (project / "start.py").write_text(
        "import coverage\nmeasured = coverage.Coverage()\nmeasured.start()\nfrom prog import compiled\ncompiled(5)\n"
        "measured.stop()\nmeasured.erase()\nmeasured.start()\ncompiled(1)\nmeasured.stop()\nmeasured.save()\n"
    )
    run(project, "start")
    assert 8 in missing_lines(project) and 9 not in missing_lines(project)


def test_cached_code_of_a_copied_directory(project):
    """Numba looks for cached code next to the file, and takes that of the original for the copy's."""
    run(project, "coverage", "run", "prog.py", "cache")
    copied = project / "copied"
    subprocess.run(["cp", "-a", project, "copied"], cwd=project.parent, check=True)
    (project.parent / "copied").rename(copied)
    for hits in "0", "1":
        assert run(copied, "coverage", "run", "prog.py", "cache").stdout.split() == ["0", hits]
        assert missing_lines(copied) == MISSING_LINES
