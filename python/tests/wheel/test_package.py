"""`import jitlisten` in a running interpreter."""

import textwrap

import pytest
from conftest import PROGRAMS, command, python


@pytest.fixture
def execute(run, tmp_path):
    """Runs Python source and returns its output, split at white space."""

    def execute(source, *command_prefix, **environment):
        program = tmp_path / "prog.py"
        program.write_text(textwrap.dedent(source))
        return run(*command_prefix, python(), program, **environment).stdout.split()

    return execute


def test_importing_does_nothing(execute):
    output = execute("""
        import sys
        before = set(sys.modules)
        import jitlisten
        print("ctypes" in sys.modules, "libjitlisten" in open("/proc/self/maps").read())
        print(jitlisten.status().open, "libjitlisten" in open("/proc/self/maps").read())
    """)
    assert output == ["False", "False", "False", "False"]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_enable_before_or_after_numba(execute, moment):
    output = execute(f"""
        import jitlisten, os
        when = {moment!r}
        if when == "before":
            jitlisten.enable(["perfmap"], lines=False)
        import numba
        @numba.njit
        def first(x):
            return x + 1
        first(1)
        jitlisten.enable(["perfmap"], lines=False)
        without = jitlisten.status().counters["functions_without_frame_pointer"]
        @numba.njit
        def second(x):
            return x * 2.5
        second(1)
        now = jitlisten.status()
        print("first", without > 0)
        print("second", now.counters["functions_without_frame_pointer"] - without)
        text = open("/tmp/perf-%d.map" % os.getpid()).read()
        print("__main__.first" in text, "__main__.second" in text, now.sinks == ("perfmap",))
        print(any(f.name.startswith("__main__.second") and f.size > 0 for f in jitlisten.functions()))
        print(now.llvms[0].discovered_by, now.llvms[0].version is not None, "libllvmlite" in now.llvms[0].path)
        print("runtimedyld" in now.llvms[0].heard_by, now.llvms[0].linked > 0, type(now.llvms[0].missing) is tuple)
    """)
    is_late = str(moment == "after")
    assert output == [
        "first",
        is_late,
        "second",
        "0",
        "True",
        "True",
        "True",
        "True",
        "call",
        "True",
        "True",
        "True",
        "True",
        "True",
    ]


def test_sinks_are_switched_off_and_on(execute):
    output = execute("""
        import jitlisten
        jitlisten.enable("perfmap, unwind", lines=False)
        print(jitlisten.status().sinks)
        jitlisten.disable()
        print(jitlisten.status().sinks)
        jitlisten.disable()
        jitlisten.enable("image", lines=False)
        print(jitlisten.status().sinks)
    """)
    assert " ".join(output) == "('perfmap', 'unwind') () ('image',)"


def test_code_is_as_it_would_have_been_after_disable(execute):
    output = execute("""
        import numba, ctypes, llvmlite.binding.ffi as ffi
        numba.njit(lambda x: x + 1)(1)
        def addresses():
            library = ffi.lib._lib
            return [ctypes.cast(getattr(library, name), ctypes.c_void_p).value
                    for name in ("LLVMPY_AddModule", "LLVMPY_CreateMCJITCompiler")]
        before = addresses()
        import jitlisten
        jitlisten.enable("perfmap", lines=False)
        during = addresses()
        jitlisten.disable()
        print(before != during, before == addresses())
    """)
    assert output == ["True", "True"]


def test_mistakes_are_exceptions_with_a_reason(execute):
    output = execute("""
        import jitlisten
        def reason(call):
            try:
                call()
                print("nothing")
            except jitlisten.Error as error:
                print(str(error).replace(" ", "_"))
        reason(lambda: jitlisten.enable("nonsense"))
        reason(lambda: jitlisten.enable([]))
        reason(lambda: jitlisten.enable(directory="/nonexistent"))
        reason(jitlisten.functions)
        jitlisten.disable()
    """)
    assert (
        "nonsense" in output[0]
        and "at_least_one" in output[1]
        and "/nonexistent" in output[2]
        and "enable()" in output[3]
    )


def test_switched_off_by_the_environment(execute):
    output = execute(
        """
        import jitlisten
        try:
            jitlisten.enable("perfmap")
        except jitlisten.Error as error:
            print("Error", error)
    """,
        JITLISTEN="off",
    )
    assert output[0] == "Error" and len(output) > 2


def test_a_preloaded_library_is_the_one_that_is_used(execute):
    output = execute(
        """
        import jitlisten
        print(jitlisten.status().sinks)
        jitlisten.enable("jitdump", lines=False)
        print("jitdump" in jitlisten.status().sinks)
        print(open("/proc/self/maps").read().count("r-xp") > 0, jitlisten.status().version == jitlisten.__version__)
    """,
        command(),
        "run",
        "--",
    )
    assert " ".join(output) == "('perfmap', 'unwind', 'image', 'modules') True True True"


def test_lines_of_functions_that_have_them(execute):
    output = execute("""
        import jitlisten, numba
        jitlisten.enable("perfmap", lines=False)
        @numba.njit(debug=True)
        def traced(x):
            return x + 1
        traced(1)
        found = [f for f in jitlisten.functions() if f.name.startswith("__main__.traced")]
        print(found[0].file.endswith("prog.py"), found[0].line)
    """)
    assert output[0] == "True" and int(output[1]) in (4, 5, 6)


def test_every_program_of_these_tests_is_there():
    assert (PROGRAMS / "kernel.py").exists()
