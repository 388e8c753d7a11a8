"""An object of gcc's, linked by tvm_ffi_orcjit, an LLVM 23 without symbols and names of types: python
object_of_orcjit.py. Prints a sum."""

import pathlib
import subprocess
import tempfile

import tvm_ffi
import tvm_ffi_orcjit

SOURCE = """
#include <tvm/ffi/c_api.h>
int __tvm_ffi_harmonic(void *handle, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
    result->type_index = kTVMFFIFloat;
    result->v_float64 = 0;
    for (int64_t i = 1; i <= arguments[0].v_int64; i++)
        result->v_float64 += 1.0 / i;
    return 0;
}
"""

with tempfile.TemporaryDirectory() as place:
    source, made = pathlib.Path(place, "a.c"), pathlib.Path(place, "a.o")
    source.write_text(SOURCE)
    headers = [tvm_ffi.libinfo.find_include_path(), tvm_ffi.libinfo.find_dlpack_include_path()]
    subprocess.run(["gcc", "-O1", "-fPIC", *(f"-I{each}" for each in headers), "-c", source, "-o", made], check=True)
    session = tvm_ffi_orcjit.ExecutionSession()
    print(round(session.load_module(str(made)).harmonic(100000), 6))
