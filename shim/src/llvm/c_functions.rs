//! Tables of LLVM's C functions.

/// Declares a struct of C functions that are looked up by name.
macro_rules! c_functions {
    ($(#[$doc:meta])* $vis:vis $table:ident {
        $($field:ident = $symbol:literal ($($argument:ty),*) $(-> $result:ty)?;)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        $vis struct $table {
            $($field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl $table {
            #[allow(dead_code, reason = "not every table is searched for in a file")]
            const NAMES: &[&str] = &[$($symbol),*];

            /// Looks up all functions in one LLVM library; `None` if any function is missing.
            fn new(address: impl Fn(&str) -> Option<usize>) -> Option<$table> {
                Some($table {
                    $($field: {
                        type Pointer = unsafe extern "C" fn($($argument),*) $(-> $result)?;
                        let function_address = address($symbol)?;
                        // SAFETY: whoever passes `address` vouches that it returns this LLVM function's address.
                        unsafe { std::mem::transmute::<usize, Pointer>(function_address) }
                    },)*
                })
            }
        }
    };
}

pub(crate) use c_functions;
