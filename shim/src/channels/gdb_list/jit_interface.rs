//! The JIT descriptor of an LLVM instance, and the registration function that LLVM calls after each change of the list.

use jitlisten::log_line;
use jitlisten::plumbing::LogEvent;

use crate::channels::gdb_list::list::JitList;
use crate::llvm::recognise::MIN_LLVM_CODE_BYTES;
use crate::llvm::symbol_file::{DESCRIPTOR_SYMBOL, REGISTER_FUNCTION_SYMBOL, SymbolFile};
use crate::process::detour::{self, Callers, HookFunction};
use crate::process::library::Library;

/// Addresses of the JIT descriptor and of the registration function.
pub(crate) struct JitInterface {
    descriptor: usize,
    function: usize,
}

impl JitInterface {
    /// Looks up both symbols in a library. Cheap checks come first, because most libraries contain no LLVM. Symbols
    /// that are not exported are searched for only if `include_hidden` is set.
    pub(crate) fn find(
        library: &Library<'_>,
        symbols: &mut Option<SymbolFile>,
        include_hidden: bool,
    ) -> Option<JitInterface> {
        if let (Some(descriptor), Some(function)) =
            (library.dynamic_address(DESCRIPTOR_SYMBOL), library.dynamic_address(REGISTER_FUNCTION_SYMBOL))
        {
            return Some(JitInterface { descriptor, function });
        }
        if !include_hidden || library.segments.code_size() < MIN_LLVM_CODE_BYTES || !library.uses().mprotect {
            return None;
        }
        let values = SymbolFile::open_once(symbols, library)?.llvm_symbols();
        let address = |name| Some(library.identity.bias.wrapping_add(values.get(name)?.0 as usize));
        Some(JitInterface { descriptor: address(DESCRIPTOR_SYMBOL)?, function: address(REGISTER_FUNCTION_SYMBOL)? })
    }

    /// Hooks the registration function and returns the list. If hooking fails, logs a warning, or only an info message
    /// if LLVM's linkers are observed.
    pub(crate) fn observe(
        &self,
        library: &Library<'_>,
        hook: HookFunction,
        callers: Callers,
        linker_is_observed: bool,
    ) -> JitList {
        // SAFETY: `self.function` is the address of a function in a mapped library. The hook takes no arguments and may
        // be called from any thread until the process exits.
        let result = unsafe { detour::detour(self.function, hook, callers) };
        if let Err(refusal) = &result {
            let (library, reason) = (&*library.name(), &*refusal.to_string());
            if linker_is_observed {
                log_line!(Info, "{}", LogEvent::ListUnhooked { library, reason });
            } else {
                log_line!(Warn, "{}", LogEvent::ListPolled { library, reason });
            }
        }
        JitList::new(self.descriptor, result.is_ok())
    }
}
