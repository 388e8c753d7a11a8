"""Functions that IREE compiles to an in-memory ELF file, which its own runtime loads. Prints two sums."""

import iree.compiler
import iree.runtime
import numpy

SOURCE = """
func.func @fused(%a: tensor<64xf32>, %b: tensor<64xf32>) -> tensor<64xf32> {
  %product = arith.mulf %a, %b : tensor<64xf32>
  %sum = arith.addf %product, %b : tensor<64xf32>
  return %sum : tensor<64xf32>
}
func.func @product(%a: tensor<16x16xf32>, %b: tensor<16x16xf32>) -> tensor<16x16xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<16x16xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<16x16xf32>) -> tensor<16x16xf32>
  %end = linalg.matmul ins(%a, %b : tensor<16x16xf32>, tensor<16x16xf32>)
                       outs(%start : tensor<16x16xf32>) -> tensor<16x16xf32>
  return %end : tensor<16x16xf32>
}
"""

compiled = iree.compiler.compile_str(
    SOURCE, target_backends=["llvm-cpu"], extra_args=["--iree-llvmcpu-target-cpu=generic"]
)
module = iree.runtime.load_vm_flatbuffer(compiled, driver="local-task")
x, ones = numpy.arange(64, dtype=numpy.float32), numpy.ones((16, 16), numpy.float32)
print(module.fused(x, x).to_host().sum(), module.product(ones, ones).to_host().sum())
