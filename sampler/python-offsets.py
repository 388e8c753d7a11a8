#!/usr/bin/env python3
"""Writes src/python/layout/table.rs: where CPython 3.8 to 3.12 keeps what the sampler reads. From 3.13 on the interpreter says so itself.

    python3 sampler/python-offsets.py INCLUDE... > sampler/src/python/layout/table.rs

INCLUDE: the folders of Python.h, one of each release: /root/.pyenv/versions/3.8.18/include/python3.8 ...
"""

import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = r"""
#define Py_BUILD_CORE 1
#include <Python.h>
#include <stddef.h>
#include <stdio.h>
#if PY_VERSION_HEX >= 0x03090000
#include <internal/pycore_runtime.h>
#endif
#include <internal/pycore_pystate.h>
#if PY_VERSION_HEX >= 0x030b0000
#include <internal/pycore_frame.h>
#else
#include <frameobject.h>
#endif
#define P(name, value) printf("        " name ": %ld,\n", (long)(value))
#define NONE(name) printf("        " name ": NONE,\n")
int main(void) {
    printf("    // %s\n    Release {\n", PY_VERSION);
    P("minor", PY_MINOR_VERSION);
#if PY_VERSION_HEX < 0x03090000
    P("finalizing", offsetof(_PyRuntimeState, finalizing));
#else
    P("finalizing", offsetof(_PyRuntimeState, _finalizing));
#endif
#if PY_VERSION_HEX < 0x030b0000
    P("thread_frame", offsetof(PyThreadState, frame));
    NONE("cframe_current");
    NONE("cframe_previous");
    P("frame_code", offsetof(PyFrameObject, f_code));
    P("frame_previous", offsetof(PyFrameObject, f_back));
    P("frame_instruction", offsetof(PyFrameObject, f_lasti));
    NONE("frame_owner");
#else
    P("thread_frame", offsetof(PyThreadState, cframe));
    P("cframe_current", offsetof(_PyCFrame, current_frame));
    P("cframe_previous", offsetof(_PyCFrame, previous));
    P("frame_code", offsetof(_PyInterpreterFrame, f_code));
    P("frame_previous", offsetof(_PyInterpreterFrame, previous));
    P("frame_instruction", offsetof(_PyInterpreterFrame, prev_instr));
    P("frame_owner", offsetof(_PyInterpreterFrame, owner));
#endif
#if PY_VERSION_HEX >= 0x030b0000 && PY_VERSION_HEX < 0x030c0000
    P("frame_is_entry", offsetof(_PyInterpreterFrame, is_entry));
#else
    NONE("frame_is_entry");
#endif
    P("thread_id", offsetof(PyThreadState, thread_id));
#if PY_VERSION_HEX >= 0x030c0000
    P("thread_status", offsetof(PyThreadState, _status));
#else
    NONE("thread_status");
#endif
    P("code_file", offsetof(PyCodeObject, co_filename));
#if PY_VERSION_HEX >= 0x030b0000
    P("code_name", offsetof(PyCodeObject, co_qualname));
    P("code_instructions", offsetof(PyCodeObject, co_code_adaptive));
#else
    P("code_name", offsetof(PyCodeObject, co_name));
    NONE("code_instructions");
#endif
#if PY_VERSION_HEX >= 0x030a0000
    P("code_lines", offsetof(PyCodeObject, co_linetable));
#else
    P("code_lines", offsetof(PyCodeObject, co_lnotab));
#endif
    P("code_first_line", offsetof(PyCodeObject, co_firstlineno));
    P("text_header", sizeof(PyASCIIObject));
    P("text_wide_header", sizeof(PyCompactUnicodeObject));
    printf("    },\n");
    return 0;
}
"""

HEAD = """//! Where CPython keeps what the sampler reads, before 3.13. Written by `python-offsets.py` from the headers of each release.

use super::{NONE, Release};

#[rustfmt::skip]
pub(super) const RELEASES: &[Release] = &["""


def main() -> None:
    print(HEAD)
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "offsets.c"), Path(folder, "offsets")
        source.write_text(PROGRAM)
        for include in sys.argv[1:]:
            flags = ["-w", f"-I{include}", f"-I{include}/internal", "-o", str(program)]
            subprocess.run(["cc", *flags, str(source)], check=True)
            print(subprocess.run([program], check=True, capture_output=True, text=True).stdout, end="")
    print("];")


main()
