"""An object compiled by gcc and linked by tvm_ffi_orcjit, which embeds LLVM 23 without symbols and RTTI: python
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

with tempfile.TemporaryDirectory() as directory:
    source, output = pathlib.Path(directory, "a.c"), pathlib.Path(directory, "a.o")
    source.write_text(SOURCE)
    headers = [tvm_ffi.libinfo.find_include_path(), tvm_ffi.libinfo.find_dlpack_include_path()]
    subprocess.run(["gcc", "-O1", "-fPIC", *(f"-I{path}" for path in headers), "-c", source, "-o", output], check=True)
    session = tvm_ffi_orcjit.ExecutionSession()
    print(round(session.load_module(str(output)).harmonic(100000), 6))
