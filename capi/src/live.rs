//! Enumerates live functions and observed LLVM instances. The callback runs without a lock held.

use std::ffi::{CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt as _;

use jitlisten::Session;

use crate::guard::with_session;
use crate::status::{Failure, Status};

/// `struct jitlisten_live_function` of `include/jitlisten.h`.
#[repr(C)]
pub struct CLiveFunction {
    struct_size: usize,
    address: u64,
    size: u64,
    name: *const c_char,
    file: *const c_char,
    line: u32,
    reserved: u32,
}

const _: () = assert!(size_of::<CLiveFunction>() == 6 * 8);

/// `jitlisten_function_callback`: called once per live function.
pub type FunctionCallback = Option<unsafe extern "C-unwind" fn(user: *mut c_void, function: *const CLiveFunction)>;

/// Passes every live function to `callback`, in address order.
///
/// # Safety
/// `callback` must be null or a function of that type that may be called with `user`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jitlisten_functions(callback: FunctionCallback, user: *mut c_void) -> i32 {
    let mut functions = Vec::new();
    let status = collect(callback.is_some(), &mut functions, |session| session.live_functions());
    let Some(callback) = callback else { return status };
    for function in functions {
        let (name, file) = (c_string(function.name.as_bytes()), function.location);
        let line = file.as_ref().map_or(0, |(_, line)| *line);
        let file = file.map(|(file, _)| c_string(file.as_bytes()));
        let c_function = CLiveFunction {
            struct_size: size_of::<CLiveFunction>(),
            address: function.range.start().0,
            size: function.range.size(),
            name: name.as_ptr(),
            file: file.as_ref().map_or(std::ptr::null(), |file| file.as_ptr()),
            line,
            reserved: 0,
        };
        // SAFETY: the caller vouches for the callback; the record and its strings live until the callback returns.
        unsafe { callback(user, &raw const c_function) };
    }
    status
}

/// `struct jitlisten_llvm` of `include/jitlisten.h`.
#[repr(C)]
pub struct CLlvm {
    struct_size: usize,
    path: *const c_char,
    discovered_by: u32,
    reserved: u32,
    objects: u64,
    facts: *const c_char,
}

const _: () = assert!(size_of::<CLlvm>() == 5 * 8);

/// `jitlisten_llvm_callback`: called once per observed LLVM instance.
pub type LlvmCallback = Option<unsafe extern "C-unwind" fn(user: *mut c_void, llvm: *const CLlvm)>;

/// Passes every observed LLVM instance to `callback`.
///
/// # Safety
/// `callback` must be null or a function of that type that may be called with `user`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jitlisten_llvms(callback: LlvmCallback, user: *mut c_void) -> i32 {
    let mut llvms = Vec::new();
    let status = collect(callback.is_some(), &mut llvms, |_| jitlisten_shim::discovered());
    let Some(callback) = callback else { return status };
    for llvm in llvms {
        let path = c_string(llvm.path.as_os_str().as_bytes());
        let facts = c_string(llvm.json().as_bytes());
        let c_llvm = CLlvm {
            struct_size: size_of::<CLlvm>(),
            path: path.as_ptr(),
            discovered_by: if llvm.detoured { 1 } else { 2 },
            reserved: 0,
            objects: llvm.objects as u64,
            facts: facts.as_ptr(),
        };
        // SAFETY: the caller vouches for the callback; the record and its strings live until the callback returns.
        unsafe { callback(user, &raw const c_llvm) };
    }
    status
}

/// Collects `items` under the guard, so that callbacks run after the guard is released.
fn collect<T>(has_callback: bool, items: &mut Vec<T>, list_items: impl FnOnce(&'static Session) -> Vec<T>) -> i32 {
    with_session(|session| {
        if !has_callback {
            return Err(Failure::new(Status::InvalidArgument, format_args!("callback: the pointer is null")));
        }
        *items = list_items(session);
        Ok(())
    })
}

/// Converts bytes to a C string, dropping zero bytes.
fn c_string(bytes: &[u8]) -> CString {
    let nonzero_bytes: Vec<u8> = bytes.iter().copied().filter(|byte| *byte != 0).collect();
    CString::new(nonzero_bytes).unwrap_or_default()
}
