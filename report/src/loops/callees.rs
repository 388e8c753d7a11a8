//! Groups of functions that rules recognise by name.

pub(super) fn is_object_mode(name: &str) -> bool {
    name.starts_with("PyGILState_") || name.contains("numba_gil") || name.starts_with("PyObject_Call")
}

pub(crate) fn is_allocation(name: &str) -> bool {
    /// Functions of glibc, and the beginning of the names of its internal ones.
    const ALLOCATORS: [&str; 4] = ["malloc", "free", "calloc", "realloc"];
    const INTERNAL: [&str; 6] =
        ["_int_malloc", "_int_free", "_int_realloc", "malloc_consolidate", "unlink_chunk", "sysmalloc"];
    let is_numba_allocator = name.starts_with("NRT_") && !name.ends_with("cref") && !is_list_growth(name);
    let is_in_glibc = ALLOCATORS.contains(&name.trim_start_matches("__libc_").trim_start_matches("cfree"))
        || INTERNAL.iter().any(|beginning| name.starts_with(beginning));
    is_numba_allocator || is_in_glibc || name.starts_with("PyMem_Raw")
}

/// `memcpy` and its relatives, under the names of glibc's variants too, and Numba's copy of a block of a matrix.
pub(super) fn is_memory_copy(name: &str) -> bool {
    const COPIES: [&str; 5] =
        ["memcpy", "memmove", "memset", "numba.np.arrayobj.array_flatten.", "numba_attempt_nocopy_reshape"];
    let name = name.trim_start_matches('_');
    COPIES.iter().any(|beginning| name.starts_with(beginning))
}

pub(super) fn is_array_allocation(name: &str) -> bool {
    name.starts_with("NRT_MemInfo_alloc") && name.contains("_aligned")
}

/// Allocation by Numba of an object other than an array, such as a string.
pub(super) fn is_object_allocation(name: &str) -> bool {
    name.starts_with("NRT_MemInfo_alloc") && !name.contains("_aligned")
}

pub(super) fn is_reference_count(name: &str) -> bool {
    matches!(name, "NRT_incref" | "NRT_decref")
}

/// Preparation for work on an array: allocation and reference counts.
pub(super) fn prepares(name: &str) -> bool {
    is_allocation(name) || is_reference_count(name)
}

pub(super) fn is_list_growth(name: &str) -> bool {
    name == "NRT_MemInfo_varsize_realloc" || name == "NRT_MemInfo_varsize_realloc_unsafe"
}

pub(super) fn is_dict(name: &str) -> bool {
    name.starts_with("numba_dict") || name.contains("dictobject") || name.contains("dictimpl")
}

/// Product of vectors or matrices through BLAS.
pub(super) fn is_product(name: &str) -> bool {
    name.starts_with("numba_xxdot") || name.starts_with("numba_xxgem") || name.starts_with("numba.np.linalg.dot_")
}

/// Product of two matrices.
pub(super) fn is_matrix_product(name: &str) -> bool {
    name.starts_with("numba_xxgemm") || name.starts_with("numba.np.linalg.dot_2_mm")
}

/// Inverse, determinant or solution of linear equations through LAPACK.
pub(super) fn is_elimination(name: &str) -> bool {
    const FUNCTIONS: [&str; 4] = ["inv_impl", "slogdet_impl", "det_impl", "solve_impl"];
    let function = name.strip_prefix("numba.np.linalg.").and_then(|rest| rest.split('.').next());
    function.is_some_and(|function| FUNCTIONS.contains(&function))
}

/// Norm of a vector through BLAS.
pub(super) fn is_norm(name: &str) -> bool {
    name.starts_with("numba.np.linalg._oneD_norm")
}

/// Function of BLAS that computes on the values of a product or norm, or a BLAS library without symbols.
pub(super) fn is_blas_kernel(name: &str) -> bool {
    const KERNELS: [&str; 8] =
        ["nrm2_k", "dot_k", "dot_compute", "gemv_n", "gemv_t", "gemv_k", "gemm_kernel", "gemm_small"];
    KERNELS.iter().any(|kernel| name.contains(kernel))
        || name.starts_with('[') && (name.contains("blas") || name.contains("mkl"))
}

/// Function of OpenBLAS for norms, which guards against overflow, and computes one value at a time.
pub(super) fn is_slow_norm(name: &str) -> bool {
    name.contains("nrm2_k") || name.starts_with("[lib") && name.contains("openblas")
}

/// Function that works on the values of a matrix for LAPACK, or such a library without symbols.
pub(super) fn is_lapack_kernel(name: &str) -> bool {
    const KERNELS: [&str; 8] = ["trsm", "trsv", "getrf", "laswp", "gemm", "gemv_n", "gemv_t", "_check_finite_matrix"];
    is_blas_kernel(name) || KERNELS.iter().any(|kernel| name.contains(kernel))
}

/// Returns the name of a function of Numba's module for NumPy's functions on arrays, which Numba 0.61 renamed.
fn array_function(name: &str) -> Option<&str> {
    ["numba.np.arraymath.", "numba.np.old_arraymath."].into_iter().find_map(|module| name.strip_prefix(module))
}

/// Function of Numba that returns a new array, computed from every value of others.
pub(super) fn is_array_expression(name: &str) -> bool {
    array_function(name).is_some_and(|function| function.starts_with("_where_"))
}

/// Function of NumPy on an array, such as `np.cross`, that is not inlined.
pub(super) fn is_array_function(name: &str) -> bool {
    let is_outer_product = name.starts_with("numba.np.linalg.outer_impl");
    is_outer_product || array_function(name).is_some() && !is_array_expression(name)
}

/// `np.interp` of Numba.
pub(super) fn is_interpolation(name: &str) -> bool {
    array_function(name).is_some_and(|function| function.starts_with("np_interp"))
}

/// Variance of an array, whose sums keep their order whatever the options of the caller.
pub(super) fn is_ordered_reduction(name: &str) -> bool {
    array_function(name)
        .is_some_and(|function| ["array_var.", "array_std."].iter().any(|part| function.starts_with(part)))
}

/// Function of Numba that sorts an array, or selects some of its values by their order.
pub(super) fn is_sort(name: &str) -> bool {
    let is_selection =
        |function: &str| ["np_median.", "_collect_percentiles"].iter().any(|part| function.starts_with(part));
    name.starts_with("numba.misc.quicksort.")
        || name.starts_with("numba.np.arrayobj.impl_np_sort.")
        || array_function(name).is_some_and(is_selection)
}

/// Function of Numba that returns a longer copy of an array.
pub(super) fn is_array_growth(name: &str) -> bool {
    name.contains("numba.np.arrayobj.np_append")
}

/// Function of Numba that copies several arrays into a new one.
pub(super) fn is_array_join(name: &str) -> bool {
    const FUNCTIONS: [&str; 5] = ["np_concatenate", "np_stack", "np_hstack", "np_vstack", "np_column_stack"];
    let function = name.strip_prefix("numba.np.arrayobj.").map(|rest| rest.trim_start_matches("impl_"));
    function.is_some_and(|function| FUNCTIONS.iter().any(|join| function.starts_with(join)))
}

pub(super) fn is_typed_list_growth(name: &str) -> bool {
    name.starts_with("numba.typed.listobject.impl_append") || name.starts_with("numba_list_append")
}

pub(super) fn is_typed_list_item(name: &str) -> bool {
    name.starts_with("numba.typed.listobject.")
}

pub(super) fn writes_typed_list(name: &str) -> bool {
    name.starts_with("numba.typed.listobject.impl_setitem")
}

pub(super) fn is_concatenation(name: &str) -> bool {
    name.starts_with("numba.cpython.unicode.unicode_concat")
}

pub(super) fn is_string(name: &str) -> bool {
    name.starts_with("numba.cpython.unicode.") || name.starts_with("numba.cpython.unsafe.")
}

/// Entry of Numba's parallel loops into their threads.
pub(super) fn is_parallel_loop(name: &str) -> bool {
    matches!(name, "parallel_for" | "numba_parallel_for") || name.starts_with("do_scheduling")
}

/// Code that starts threads and waits for them: of Numba, OpenMP, or the C library.
pub(super) fn is_thread_runtime(name: &str) -> bool {
    const PREFIXES: [&str; 10] = [
        "gomp_",
        "GOMP_",
        "omp_",
        "__kmp",
        "[libgomp",
        "[libiomp",
        "[libtbb",
        "pthread_cond_",
        "create_schedule",
        "sched_yield",
    ];
    is_parallel_loop(name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

pub(super) fn is_float_remainder(name: &str) -> bool {
    matches!(math_name(name), "fmod" | "fmodf")
}

pub(super) fn is_hypot(name: &str) -> bool {
    math_name(name).starts_with("hypot")
}

pub(super) fn is_power(name: &str) -> bool {
    matches!(math_name(name), "pow" | "powf")
}

/// Returns true for a libm function: a public name such as `exp`, an internal one such as `__exp_fma` or
/// `__ieee754_pow_fma`, or libm code without a symbol.
pub(super) fn is_math(name: &str) -> bool {
    const FUNCTIONS: [&str; 25] = [
        "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "pow", "sin", "cos", "tan", "asin", "acos", "atan",
        "atan2", "sinh", "cosh", "tanh", "hypot", "cbrt", "erf", "erfc", "lgamma", "tgamma", "fmod",
    ];
    let is_listed = |name: &str| FUNCTIONS.contains(&name);
    let base = math_name(name);
    name.starts_with("[libm.so")
        || name.starts_with("[libm-")
        || is_listed(base)
        || base.strip_suffix('f').or_else(|| base.strip_suffix("f64")).is_some_and(is_listed)
}

/// Returns the public name of a libm function: `pow` for `__ieee754_pow_fma`.
pub(super) fn math_name(name: &str) -> &str {
    let name = name.trim_start_matches('_').trim_start_matches("numba_");
    let name = name.strip_prefix("ieee754_").unwrap_or(name);
    ["_fma", "_fma4", "_avx2", "_sse2", "_finite"]
        .iter()
        .fold(name, |name, suffix| name.strip_suffix(suffix).unwrap_or(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_libm_functions_are_recognised() {
        let names = ["exp", "__exp_fma", "__ieee754_pow_fma", "sinf", "__log_finite", "numba_exp", "[libm.so.6]"];
        assert!(names.into_iter().chain(["hypotf64", "numba_fmod"]).all(is_math));
        assert!(!["expand", "logger", "sincere", "if"].into_iter().any(is_math));
        assert!(["hypot", "__hypot_fma", "hypotf64", "hypotf"].into_iter().all(is_hypot));
        assert!(is_float_remainder("numba_fmod") && is_power("__pow_fma") && !is_power("powers"));
    }

    #[test]
    fn allocation_includes_what_malloc_calls() {
        let names = ["__libc_malloc", "_int_free_merge_chunk", "unlink_chunk.constprop.0", "PyMem_RawFree"];
        assert!(names.into_iter().chain(["NRT_MemInfo_alloc_aligned", "malloc_consolidate"]).all(is_allocation));
        let copies = ["memcpy", "__memmove_avx_unaligned_erms", "numba.np.arrayobj.array_flatten.<locals>.imp"];
        assert!(copies.into_iter().all(is_memory_copy));
        assert!(!["NRT_incref", "malloc_trim_all", "free_list", "PyMem_Malloc"].into_iter().any(is_allocation));
    }

    #[test]
    fn functions_on_arrays_are_recognised_in_both_modules() {
        for module in ["numba.np.arraymath", "numba.np.old_arraymath"] {
            assert!(is_sort(&format!("{module}.np_median.<locals>.median_impl")));
            assert!(is_ordered_reduction(&format!("{module}.array_std.<locals>.array_std_impl")));
            assert!(is_array_expression(&format!("{module}._where_generic_impl")));
            assert!(is_array_function(&format!("{module}.np_cross.<locals>.impl")));
        }
        assert!(!is_array_function("prog.arraymath.np_median.") && !is_sort("numba.np.arraymath.array_var."));
    }

    #[test]
    fn joining_two_arrays_is_not_growth() {
        assert!(is_array_growth("numba.np.arrayobj.np_append.impl"));
        let join = "numba.np.arrayobj.impl_np_concatenate.<locals>.impl";
        assert!(!is_array_growth(join) && is_array_join(join) && is_array_join("numba.np.arrayobj.np_vstack.impl"));
        assert!(!is_array_join("numba.np.arrayobj.np_append.impl"));
    }

    #[test]
    fn kernels_of_blas_are_recognised() {
        let kernels = [
            "dnrm2_k_HASWELL",
            "ddot_k_ZEN",
            "dot_compute",
            "dgemm_small_kernel_nn_ZEN",
            "[libscipy_openblas-6cdc3b4a.so]",
        ];
        assert!(kernels.into_iter().all(is_blas_kernel));
        assert!(!["numba_xxdot", "NRT_decref", "scipy_dgemv_", "[libc.so.6]"].into_iter().any(is_blas_kernel));
    }

    #[test]
    fn allocators_are_recognised() {
        let allocators = ["malloc", "NRT_Allocate", "_int_free", "__libc_malloc", "NRT_MemInfo_call_dtor"];
        assert!(allocators.into_iter().all(is_allocation));
        assert!(!["freeze", "NRT_incref", "NRT_decref", "NRT_MemInfo_varsize_realloc"].into_iter().any(is_allocation));
    }
}
