"""Compiles programs with lines in processes of their own, and reads the line tables and descriptions with
llvm-dwarfdump."""

import os
import re
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.abspath(os.path.join(HERE, os.pardir, os.pardir))
LIBRARY = os.environ.get("JITLISTEN_LIBRARY", os.path.join(PACKAGE, os.pardir, "target", "release", "libjitlisten.so"))

# Keeps every object that is compiled behind it.
CAPTURE = """
import os, sys
sys.path[:0] = [%r, %r]
import objects
import jitlisten._lines as lines
lines.install()
objects.capture()
""" % (PACKAGE, HERE)


def run(program, check=True, **environment):
    """Runs a Python program in a process of its own; what it printed."""
    # Numba 0.56 has no lines otherwise.
    variables = dict(os.environ, PYTHONPATH=PACKAGE, JITLISTEN_LINES="force")
    variables.update(environment)
    done = subprocess.run(
        [sys.executable, "-c", program], env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=600
    )
    if check:
        assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def rows(program, tmp_path, **environment):
    """The files and lines of all objects that the program compiles, from their line tables."""
    text = CAPTURE + program
    text += "\nfor i, data in enumerate(objects.CAPTURED): open({!r} + '/%d.o' % i, 'wb').write(data)".format(
        str(tmp_path)
    )
    run(text, **environment)
    return rows_of(tmp_path)


def dwarfdump(option, names):
    tool = next((t for t in ("llvm-dwarfdump-22", "llvm-dwarfdump-14", "llvm-dwarfdump") if shutil.which(t)), None)
    assert tool, "llvm-dwarfdump is needed"
    return subprocess.run([tool, option] + [str(name) for name in names], stdout=subprocess.PIPE).stdout.decode(
        "utf-8", "replace"
    )


def rows_of(directory, pattern="*.o"):
    found, files = set(), {}
    for line in dwarfdump("--debug-line", directory.glob(pattern)).splitlines():
        words = line.split()
        if line.startswith("Line table prologue"):
            files = {}
        elif line.startswith("file_names["):
            number = int(line[len("file_names[") : line.index("]")])
        elif words[:1] == ["name:"]:
            files[number] = line.split('"')[1]
        elif len(words) > 5 and words[0].startswith("0x") and "end_sequence" not in line:
            found.add((files[int(words[3])], int(words[1])))
    return found


def source(tmp_path, text, name="prog.py"):
    path = tmp_path / name
    path.write_text(text)
    return "import sys; sys.path.insert(0, %r); import %s\n" % (str(tmp_path), name[:-3])


def inlined_calls(dump):
    """`{function: [(inlined function, file and line of the call), ...]}`, from the outside in."""
    found, chain = {}, []
    for entry in re.split(r"\n(?=0x)", dump):
        kind = re.match(r"0x[0-9a-f]+:( +)DW_TAG_(\w+)", entry)
        name = re.search(r'DW_AT_(?:abstract_origin\s+\(0x\w+|linkage_name\s+\() ?"([^"]+)"', entry) or re.search(
            r'DW_AT_name\s+\("([^"]+)"', entry
        )
        if kind and kind[2] == "subprogram" and "DW_AT_low_pc" in entry and name:
            chain = found.setdefault(name[1], [])
        elif kind and kind[2] == "inlined_subroutine" and name:
            file, line = re.search(r'call_file\s+\("([^"]+)"', entry), re.search(r"call_line\s+\((\d+)\)", entry)
            chain.append((name[1], os.path.basename(file[1]), int(line[1])))
    return found
