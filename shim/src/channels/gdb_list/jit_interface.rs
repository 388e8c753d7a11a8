//! The GDB JIT list of an LLVM, and the function that LLVM calls at each change.

use jitlisten::log_line;

use crate::hook_table::HookFunction;
use crate::llvm::symbol_file::{DESCRIPTOR, REGISTER_FUNCTION, SymbolFile};
use crate::llvm::vtable::mapped::SMALLEST_LLVM;
use crate::process::detour::{self, Callers};
use crate::process::library::Library;

/// Where the two symbols of the JIT interface are.
pub(crate) struct JitInterface {
    pub(crate) descriptor: usize,
    function: usize,
}

impl JitInterface {
    /// Looks where it costs little first: most libraries have no LLVM in them. Among symbols that are not exported only
    /// with `hidden`.
    pub(crate) fn find(library: &Library<'_>, symbols: &mut Option<SymbolFile>, hidden: bool) -> Option<JitInterface> {
        if let (Some(descriptor), Some(function)) =
            (library.dynamic_address(DESCRIPTOR), library.dynamic_address(REGISTER_FUNCTION))
        {
            return Some(JitInterface { descriptor, function });
        }
        if !hidden || library.code_size() < SMALLEST_LLVM || !library.uses().mprotect {
            return None;
        }
        let values = SymbolFile::opened(symbols, library)?.llvm_symbols();
        let address = |name| Some(library.identity.bias.wrapping_add(values.get(name)?.0 as usize));
        Some(JitInterface { descriptor: address(DESCRIPTOR)?, function: address(REGISTER_FUNCTION)? })
    }

    /// Sends calls of the function to `hook`, or says why not. `linker_is_heard`: it does not matter much.
    pub(crate) fn detour(
        &self,
        library: &Library<'_>,
        hook: HookFunction,
        callers: Callers,
        linker_is_heard: bool,
    ) -> bool {
        // SAFETY: the address is that of a function in the library, which is mapped; the hook takes no argument and may
        // be called from anywhere, for ever.
        let detoured = unsafe { detour::detour(self.function, hook, callers) };
        if let Err(refusal) = &detoured {
            let path = library.path.display();
            if linker_is_heard {
                log_line!(Info, "{path}: could not hook __jit_debug_register_code: {refusal}");
            } else {
                log_line!(
                    Warn,
                    "{path}: could not hook __jit_debug_register_code: {refusal}; the GDB JIT list is read when memory \
                     becomes executable, which misses some objects"
                );
            }
        }
        detoured.is_ok()
    }
}
