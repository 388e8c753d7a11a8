"""Compiles programs with line tables in a fresh process, and reads the line tables and debug information with
llvm-dwarfdump."""

import os
import re
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.abspath(os.path.join(HERE, os.pardir, os.pardir))
LIBRARY = os.environ.get("JITLISTEN_LIBRARY", os.path.join(PACKAGE, os.pardir, "target", "release", "libjitlisten.so"))

# Prefix of a program that collects each object compiled from then on.
CAPTURE = """
import os, sys
sys.path[:0] = [%r, %r]
import objects
import jitlisten._lines as lines
lines.install()
objects.capture()
""" % (PACKAGE, HERE)


def run_python(program, check=True, **environment):
    """Runs a Python program in a fresh process; returns its standard output."""
    # Numba 0.56 needs `force` to emit line tables.
    variables = dict(os.environ, PYTHONPATH=PACKAGE, JITLISTEN_LINES="force")
    variables.update(environment)
    result = subprocess.run(
        [sys.executable, "-c", program], env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=600
    )
    if check:
        assert result.returncode == 0, result.stderr.decode()
    return result.stdout.decode()


def compiled_rows(program, tmp_path, **environment):
    """(file, line) pairs from the line tables of all objects that the program compiles."""
    code = CAPTURE + program
    code += "\nfor i, data in enumerate(objects.CAPTURED): open({!r} + '/%d.o' % i, 'wb').write(data)".format(
        str(tmp_path)
    )
    run_python(code, **environment)
    return line_table_rows(tmp_path)


def dwarfdump(option, paths):
    tool = next(
        (
            t
            for t in ("llvm-dwarfdump-22", "llvm-dwarfdump-21", "llvm-dwarfdump-14", "llvm-dwarfdump")
            if shutil.which(t)
        ),
        None,
    )
    assert tool, "llvm-dwarfdump is needed"
    return subprocess.run([tool, option] + [str(path) for path in paths], stdout=subprocess.PIPE).stdout.decode(
        "utf-8", "replace"
    )


def line_table_rows(directory, pattern="*.o"):
    rows, files = set(), {}
    for line in dwarfdump("--debug-line", directory.glob(pattern)).splitlines():
        fields = line.split()
        if line.startswith("Line table prologue"):
            files = {}
        elif line.startswith("file_names["):
            file_number = int(line[len("file_names[") : line.index("]")])
        elif fields[:1] == ["name:"]:
            files[file_number] = line.split('"')[1]
        elif len(fields) > 5 and fields[0].startswith("0x") and "end_sequence" not in line:
            rows.add((files[int(fields[3])], int(fields[1])))
    return rows


def write_module(tmp_path, source, name="prog.py"):
    path = tmp_path / name
    path.write_text(source)
    return "import sys; sys.path.insert(0, %r); import %s\n" % (str(tmp_path), name[:-3])


def inlined_calls(dump):
    """`{function: [(inlined function, file and line of the call), ...]}`, outermost call first."""
    calls_by_function, calls = {}, []
    for entry in re.split(r"\n(?=0x)", dump):
        tag = re.match(r"0x[0-9a-f]+:( +)DW_TAG_(\w+)", entry)
        name = re.search(r'DW_AT_(?:abstract_origin\s+\(0x\w+|linkage_name\s+\() ?"([^"]+)"', entry) or re.search(
            r'DW_AT_name\s+\("([^"]+)"', entry
        )
        if tag and tag[2] == "subprogram" and "DW_AT_low_pc" in entry and name:
            calls = calls_by_function.setdefault(name[1], [])
        elif tag and tag[2] == "inlined_subroutine" and name:
            file, line = re.search(r'call_file\s+\("([^"]+)"', entry), re.search(r"call_line\s+\((\d+)\)", entry)
            calls.append((name[1], os.path.basename(file[1]), int(line[1])))
    return calls_by_function
