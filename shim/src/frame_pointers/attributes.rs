//! Adds frame pointers and unwind tables to a module before it is compiled, through the host's own LLVM-C functions.
//!
//! Numba infers `nounwind` for many functions. LLVM then gives them neither a frame pointer nor an entry in
//! `.eh_frame`, so no unwinder can step through their frames. Every function with a body therefore gets
//! `"frame-pointer"="all"` and `uwtable`.
//!
//! The llvmlite wheels are built with assertions, so a wrong edit aborts the host. If LLVM's version is unknown,
//! modules stay unchanged.
//!
//! Rejected alternative: the option `-frame-pointer=all` through `LLVMPY_SetCommandLine`. The wheels lack this option
//! and ignore unknown ones. Numba's `inspect_llvm()` and `inspect_asm()` show the attributes, because they print the
//! compiled module.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_uint, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use jitlisten::options::FramePointerPolicy;

use crate::llvm::c_functions::c_functions;
use crate::llvm::releases;
use crate::process::library::Library;

/// Policy for functions without an unwind table.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnwindTables {
    /// Give every function an unwind table.
    Added,
    /// Do not add unwind tables, because the host may manage the memory. LLVM registers an object's tables with the
    /// unwinder and reads them when the engine is destroyed. A host whose code never had tables may have freed that
    /// memory by then (drjit).
    Unchanged,
}

type Module = *mut c_void;
type Function = *mut c_void;
type Block = *mut c_void;
type Instruction = *mut c_void;
type Context = *mut c_void;
type Attribute = *mut c_void;
type MemoryBuffer = *mut c_void;

/// Value of `LLVMAttributeFunctionIndex` in `llvm-c/Core.h`, which is `~0U`.
const FUNCTION_INDEX: c_uint = c_uint::MAX;

c_functions! {
    /// Functions of `llvm-c/Core.h`; their signatures are unchanged from LLVM 10 to 22.
    ModuleFunctions {
        get_first_function = "LLVMGetFirstFunction" (Module) -> Function;
        get_next_function = "LLVMGetNextFunction" (Function) -> Function;
        is_declaration = "LLVMIsDeclaration" (Function) -> i32;
        get_module_context = "LLVMGetModuleContext" (Module) -> Context;
        get_enum_attribute_kind_for_name = "LLVMGetEnumAttributeKindForName" (*const c_char, usize) -> c_uint;
        get_enum_attribute_at_index = "LLVMGetEnumAttributeAtIndex" (Function, c_uint, c_uint) -> Attribute;
        create_enum_attribute = "LLVMCreateEnumAttribute" (Context, c_uint, u64) -> Attribute;
        add_attribute_at_index = "LLVMAddAttributeAtIndex" (Function, c_uint, Attribute);
        add_target_dependent_function_attr =
            "LLVMAddTargetDependentFunctionAttr" (Function, *const c_char, *const c_char);
    }
}

c_functions! {
    /// Functions that edit a module in text form, from `llvm-c/Core.h` and `llvm-c/IRReader.h`.
    TextFunctions {
        context_create = "LLVMContextCreate" () -> Context;
        context_dispose = "LLVMContextDispose" (Context);
        create_memory_buffer =
            "LLVMCreateMemoryBufferWithMemoryRangeCopy" (*const c_char, usize, *const c_char) -> MemoryBuffer;
        parse_ir_in_context =
            "LLVMParseIRInContext" (Context, MemoryBuffer, *mut Module, *mut *mut c_char) -> i32;
        print_module_to_string = "LLVMPrintModuleToString" (Module) -> *mut c_char;
        dispose_message = "LLVMDisposeMessage" (*mut c_char);
        dispose_module = "LLVMDisposeModule" (Module);
    }
}

c_functions! {
    /// Functions that find calls that pass an argument in the frame pointer register, from `llvm-c/Core.h`.
    ConventionFunctions {
        get_function_call_conv = "LLVMGetFunctionCallConv" (Function) -> c_uint;
        get_first_basic_block = "LLVMGetFirstBasicBlock" (Function) -> Block;
        get_next_basic_block = "LLVMGetNextBasicBlock" (Block) -> Block;
        get_first_instruction = "LLVMGetFirstInstruction" (Block) -> Instruction;
        get_next_instruction = "LLVMGetNextInstruction" (Instruction) -> Instruction;
        get_instruction_opcode = "LLVMGetInstructionOpcode" (Instruction) -> c_uint;
        get_instruction_call_conv = "LLVMGetInstructionCallConv" (Instruction) -> c_uint;
    }
}

c_functions! {
    /// Functions that return a module's target, from `llvm-c/Core.h`.
    TargetFunctions {
        get_target = "LLVMGetTarget" (Module) -> *const c_char;
    }
}

c_functions! {
    /// Functions of `llvm-c/Core.h` that exist since LLVM 16.
    VersionFunctions {
        get_version = "LLVMGetVersion" (*mut c_uint, *mut c_uint, *mut c_uint);
    }
}

/// LLVM-C functions that a library exports as dynamic symbols.
pub(crate) struct ExportedFunctions {
    functions: Option<(ModuleFunctions, ConventionFunctions, TargetFunctions)>,
    version: Option<VersionFunctions>,
}

impl ExportedFunctions {
    /// Looks up the functions without calling any of them.
    pub(crate) fn find(library: &Library<'_>) -> Option<ExportedFunctions> {
        let address = |name: &str| library.dynamic_address(name);
        let (module, conventions) = (ModuleFunctions::new(address)?, ConventionFunctions::new(address)?);
        let target = TargetFunctions::new(address)?;
        Some(ExportedFunctions {
            functions: Some((module, conventions, target)),
            version: VersionFunctions::new(address),
        })
    }

    #[cfg(test)]
    pub(crate) fn empty() -> ExportedFunctions {
        ExportedFunctions { functions: None, version: None }
    }

    /// Returns LLVM's major version. The library must already be relocated.
    pub(crate) fn version(&self) -> Option<u32> {
        let (mut major, mut minor, mut patch) = (0, 0, 0);
        // SAFETY: `LLVMGetVersion` only writes three numbers through its arguments.
        unsafe { (self.version?.get_version)(&raw mut major, &raw mut minor, &raw mut patch) };
        Some(major)
    }

    /// Returns the functions that edit modules, if the release is known.
    pub(crate) fn llvm(&self, version: u32) -> Option<LlvmC> {
        let (module, conventions, _) = self.functions?;
        Some(LlvmC { uwtable: releases::uwtable(version)?, module, conventions: Some(conventions), text: None })
    }

    /// Returns true if a module's target is this machine's architecture.
    ///
    /// # Safety
    /// `module` must be a module of this LLVM library that no other thread uses.
    pub(crate) unsafe fn is_for_this_machine(&self, module: Module) -> bool {
        let Some((.., target)) = self.functions else { return false };
        // SAFETY: `module` belongs to this LLVM library. Its triple is a C string that lives as long as the module is
        // unchanged.
        unsafe {
            let triple = (target.get_target)(module);
            !triple.is_null() && is_this_machine(CStr::from_ptr(triple))
        }
    }
}

/// Returns true if a target triple names this machine's architecture. An empty triple means this machine.
pub(crate) fn is_this_machine(triple: &CStr) -> bool {
    let architecture = triple.to_bytes().split(|&byte| byte == b'-').next().unwrap_or_default();
    let names: [&[u8]; 2] = if cfg!(target_arch = "x86_64") { [b"x86_64", b"amd64"] } else { [b"aarch64", b"arm64"] };
    architecture.is_empty() || names.contains(&architecture)
}

/// Returns true if a calling convention (`llvm/IR/CallingConv.h`) passes an argument in the frame pointer register, as
/// those of GHC, HiPE and HHVM do.
fn takes_frame_register(convention: c_uint) -> bool {
    matches!(convention, 10 | 11 | 81 | 82)
}

/// Returns true for the call opcodes of `LLVMOpcode` in `llvm-c/Core.h`: `LLVMInvoke`, `LLVMCall` and `LLVMCallBr`.
fn is_call(opcode: c_uint) -> bool {
    matches!(opcode, 5 | 45 | 67)
}

impl ConventionFunctions {
    /// Returns true if a function takes an argument in the frame pointer register, or calls a function that does. With
    /// a frame pointer, such a caller loses its stack pointer when the call returns (before LLVM 20); since LLVM 20,
    /// some callers do not compile at all.
    ///
    /// # Safety
    /// `function` must be a function of this LLVM library, in a module that no other thread uses.
    unsafe fn needs_frame_register(&self, function: Function) -> bool {
        // SAFETY: the function, its blocks and their instructions belong to this LLVM library, and no other thread
        // changes them meanwhile. A function whose body has not been read yet (lazily loaded bitcode) has no blocks.
        // Every call has a calling convention.
        unsafe {
            if takes_frame_register((self.get_function_call_conv)(function)) {
                return true;
            }
            let mut block = (self.get_first_basic_block)(function);
            while !block.is_null() {
                let mut instruction = (self.get_first_instruction)(block);
                while !instruction.is_null() {
                    if is_call((self.get_instruction_opcode)(instruction))
                        && takes_frame_register((self.get_instruction_call_conv)(instruction))
                    {
                        return true;
                    }
                    instruction = (self.get_next_instruction)(instruction);
                }
                block = (self.get_next_basic_block)(block);
            }
        }
        false
    }
}

/// Functions of one LLVM library that edit modules.
pub(crate) struct LlvmC {
    uwtable: u64,
    module: ModuleFunctions,
    /// Functions that read calling conventions; `None` if the library lacks any of them.
    conventions: Option<ConventionFunctions>,
    /// Functions that edit modules in text form; `None` if the library lacks any of them.
    text: Option<TextFunctions>,
}

impl LlvmC {
    /// Symbols to look up in the `.symtab` of llvmlite's library.
    pub(crate) fn names() -> Vec<&'static str> {
        [ModuleFunctions::NAMES, ConventionFunctions::NAMES, TextFunctions::NAMES].concat()
    }

    /// Finds the LLVM functions that an llvmlite library uses. The wheels contain LLVM, so the functions are in the
    /// `.symtab` of the library's own file, and `values` holds their symbol values. Other builds link to a
    /// `libLLVM.so`. `version` is LLVM's major version. Takes the loader's lock, so the caller must not hold any of our
    /// locks.
    pub(crate) fn find(path: &Path, bias: usize, values: &BTreeMap<&str, u64>, version: u32) -> Option<LlvmC> {
        let uwtable = releases::uwtable(version)?;
        let open_library = OpenLibrary::open(path);
        let address = |name: &str| match values.get(name) {
            Some(&value) => Some(bias.wrapping_add(value as usize)),
            None => open_library.as_ref()?.symbol(name),
        };
        let module = ModuleFunctions::new(address)?;
        let (conventions, text) = (ConventionFunctions::new(address), TextFunctions::new(address));
        Some(LlvmC { uwtable, module, conventions, text })
    }

    /// Applies `policy` to every function of `module` that has a body.
    ///
    /// # Safety
    /// `module` must be a module of this LLVM library that no other thread uses.
    pub(crate) unsafe fn patch_module(&self, module: Module, policy: FramePointerPolicy, tables: UnwindTables) {
        if module.is_null() || policy == FramePointerPolicy::Untouched {
            return;
        }
        // SAFETY: the context and the functions belong to the module. The attribute's name has the given length, and
        // its value fits this release (see the module documentation). Adding attributes does not move functions.
        unsafe {
            let context = (self.module.get_module_context)(module);
            let kind = (self.module.get_enum_attribute_kind_for_name)(c"uwtable".as_ptr(), 7);
            let adds_tables = kind != 0 && tables == UnwindTables::Added;
            let uwtable = adds_tables.then(|| (self.module.create_enum_attribute)(context, kind, self.uwtable));
            let mut function = (self.module.get_first_function)(module);
            while !function.is_null() {
                if (self.module.is_declaration)(function) == 0 {
                    self.patch_function(function, policy, kind, uwtable);
                }
                function = (self.module.get_next_function)(function);
            }
        }
    }

    /// Applies `policy` to one function.
    ///
    /// # Safety
    /// `function` must have a body and be in a module of this LLVM library that no other thread uses. `uwtable` must be
    /// an attribute of the function's context and have the kind `kind`.
    unsafe fn patch_function(
        &self,
        function: Function,
        policy: FramePointerPolicy,
        kind: c_uint,
        uwtable: Option<Attribute>,
    ) {
        // SAFETY: the function and the attribute belong to the same context, and LLVM copies the C strings.
        unsafe {
            if let Some(uwtable) = uwtable
                && (self.module.get_enum_attribute_at_index)(function, FUNCTION_INDEX, kind).is_null()
            {
                (self.module.add_attribute_at_index)(function, FUNCTION_INDEX, uwtable);
            }
            if policy == FramePointerPolicy::FramePointers
                && !self.conventions.is_some_and(|conventions| conventions.needs_frame_register(function))
            {
                let (key, value) = (c"frame-pointer".as_ptr(), c"all".as_ptr());
                (self.module.add_target_dependent_function_attr)(function, key, value);
            }
        }
    }

    /// Applies the policy to a module in text form (or bitcode) and returns the new text; `None` if that is impossible.
    ///
    /// # Safety
    /// This LLVM library must be initialised.
    pub(crate) unsafe fn patch_text(&self, module: &[u8], policy: FramePointerPolicy) -> Option<PatchedText<'_>> {
        let text = self.text.as_ref()?;
        let (mut module_pointer, mut message) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: LLVM copies the bytes into the buffer, which the parser consumes even if it fails. Only this function
        // uses the context, the module and the error message, and it disposes of each of them once.
        unsafe {
            let buffer = (text.create_memory_buffer)(module.as_ptr().cast(), module.len(), c"ir".as_ptr());
            let context = (text.context_create)();
            let mut printed = None;
            if (text.parse_ir_in_context)(context, buffer, &mut module_pointer, &mut message) == 0 {
                self.patch_module(module_pointer, policy, UnwindTables::Added);
                let string = (text.print_module_to_string)(module_pointer);
                printed = std::ptr::NonNull::new(string).map(|string| PatchedText { functions: text, string });
                (text.dispose_module)(module_pointer);
            } else if !message.is_null() {
                (text.dispose_message)(message);
            }
            (text.context_dispose)(context);
            printed
        }
    }
}

/// Handle of a loaded library, for lookups in that library and in the libraries it links to.
struct OpenLibrary(*mut c_void);

impl OpenLibrary {
    fn open(path: &Path) -> Option<OpenLibrary> {
        let path = CString::new(path.as_os_str().as_bytes()).ok()?;
        // SAFETY: with `RTLD_NOLOAD`, `dlopen` never loads anything. The handle keeps the library loaded.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        (!handle.is_null()).then_some(OpenLibrary(handle))
    }

    fn symbol(&self, name: &str) -> Option<usize> {
        let name = CString::new(name).ok()?;
        // SAFETY: the handle is open, and `name` is a C string.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        (!address.is_null()).then_some(address as usize)
    }
}

impl Drop for OpenLibrary {
    fn drop(&mut self) {
        // SAFETY: the handle is open and is closed only here.
        unsafe { libc::dlclose(self.0) };
    }
}

/// A module in text form with attributes added, in memory that LLVM's allocator owns.
pub(crate) struct PatchedText<'a> {
    functions: &'a TextFunctions,
    string: std::ptr::NonNull<c_char>,
}

impl PatchedText<'_> {
    pub(crate) fn as_c_str(&self) -> &CStr {
        // SAFETY: LLVM terminates the string with a zero byte, and the string lives until this value is dropped.
        unsafe { CStr::from_ptr(self.string.as_ptr()) }
    }
}

impl Drop for PatchedText<'_> {
    fn drop(&mut self) {
        // SAFETY: this LLVM library's `LLVMPrintModuleToString` returned the string, which is disposed of only here.
        unsafe { (self.functions.dispose_message)(self.string.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_only_triples_of_this_architecture() {
        let own_triple =
            if cfg!(target_arch = "x86_64") { c"x86_64-pc-linux-gnu" } else { c"aarch64-unknown-linux-gnu" };
        assert!(is_this_machine(own_triple) && is_this_machine(c""));
        for other in
            [c"bpf-pc-linux", c"bpf", c"nvptx64-nvidia-cuda", c"amdgcn-amd-amdhsa", c"i386-pc-linux", c"x86_64h-x"]
        {
            assert!(!is_this_machine(other), "{other:?}");
        }
    }
}
