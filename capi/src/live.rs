//! Enumerates live functions and observed LLVM instances. The callback runs without a lock held.

use std::ffi::{CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt as _;

use jitlisten::Session;
use jitlisten_shim::DiscoveredLlvm;
use wire::facts::Channel;

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
    version: *const c_char,
    discovered_by: u32,
    heard_by: u32,
    objects: u64,
    linked: u64,
    missing: *const *const c_char,
    missing_count: usize,
}

const _: () = assert!(size_of::<CLlvm>() == 8 * 8);

/// `JITLISTEN_HEARD_BY_...` of `include/jitlisten.h`.
fn heard_by_bit(channel: Channel) -> u32 {
    match channel {
        Channel::RuntimeDyld => 1,
        Channel::JitLink => 2,
        Channel::ListCall => 4,
        Channel::ListPoll => 8,
    }
}

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
        // SAFETY: the caller vouches for the callback.
        with_c_llvm(&llvm, |c_llvm| unsafe { callback(user, c_llvm) });
    }
    status
}

/// Passes the C form of an LLVM instance to `call`. Its strings and its array live until `call` returns.
fn with_c_llvm(llvm: &DiscoveredLlvm, call: impl FnOnce(&CLlvm)) {
    let path = c_string(llvm.path.as_os_str().as_bytes());
    let version = llvm.facts.version.as_ref().map(|version| c_string(version.as_bytes()));
    let reasons: Vec<CString> =
        llvm.facts.missing.iter().map(|missing| c_string(missing.to_string().as_bytes())).collect();
    let missing: Vec<*const c_char> = reasons.iter().map(|reason| reason.as_ptr()).collect();
    call(&CLlvm {
        struct_size: size_of::<CLlvm>(),
        path: path.as_ptr(),
        version: version.as_ref().map_or(std::ptr::null(), |version| version.as_ptr()),
        discovered_by: if llvm.detoured { 1 } else { 2 },
        heard_by: llvm.facts.channels.iter().fold(0, |bits, &channel| bits | heard_by_bit(channel)),
        objects: llvm.objects as u64,
        linked: llvm.linked,
        missing: missing.as_ptr(),
        missing_count: missing.len(),
    });
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

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use wire::facts::{Missing, ObservedLlvm, Part};

    use super::*;

    fn text(pointer: *const c_char) -> String {
        // SAFETY: `with_c_llvm` passes strings that end with a zero byte, and live during the call.
        unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
    }

    #[test]
    fn facts_about_an_llvm_are_fields() {
        let facts = ObservedLlvm {
            version: Some("14".to_owned()),
            channels: vec![Channel::RuntimeDyld, Channel::ListPoll],
            missing: vec![Missing::new(Part::JitLink, "switched off"), Missing::new(Part::Code, "unreported")],
            ..ObservedLlvm::default()
        };
        let mut llvm = DiscoveredLlvm { path: "/a.so".into(), detoured: false, objects: 2, linked: 3, facts };
        with_c_llvm(&llvm, |c_llvm| {
            assert_eq!((text(c_llvm.path), text(c_llvm.version)), ("/a.so".to_owned(), "14".to_owned()));
            assert_eq!((c_llvm.discovered_by, c_llvm.heard_by), (2, 1 | 8));
            assert_eq!((c_llvm.objects, c_llvm.linked), (2, 3));
            // SAFETY: the array lives during the call and has this length.
            let missing = unsafe { std::slice::from_raw_parts(c_llvm.missing, c_llvm.missing_count) };
            assert_eq!(
                missing.iter().map(|&reason| text(reason)).collect::<Vec<_>>(),
                ["JITLink: switched off", "unreported"]
            );
        });
        llvm.facts = ObservedLlvm::default();
        with_c_llvm(&llvm, |c_llvm| assert_eq!((c_llvm.version.is_null(), c_llvm.missing_count), (true, 0)));
    }
}
