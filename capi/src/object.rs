//! Code events reported by a producer: *loaded*, *finalized*, *freeing*.

use std::ffi::c_char;

use jitlisten::plumbing::{LiveObjects, into_id};
use jitlisten::producer::{LoadedCode, Placed, Producer, raw};
use jitlisten::{Address, Machine, ObjectId, Session};

use crate::borrowed::{self, Plain};
use crate::guard::with_active_session;
use crate::status::Failure;

/// `struct jitlisten_section` of `include/jitlisten.h`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CSection {
    name: *const c_char,
    address: u64,
}

/// `struct jitlisten_function` of `include/jitlisten.h`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CFunction {
    address: u64,
    size: u64,
    name: *const c_char,
}

/// `struct jitlisten_line` of `include/jitlisten.h`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CLine {
    address: u64,
    file: *const c_char,
    line: u32,
    column: u32,
}

/// `struct jitlisten_code` of `include/jitlisten.h`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CCode {
    size: usize,
    functions: *const CFunction,
    function_count: usize,
    lines: *const CLine,
    line_count: usize,
    eh_frame: *const u8,
    eh_frame_size: usize,
}

const _: () = assert!(size_of::<CSection>() == 16 && size_of::<CFunction>() == 24);
const _: () = assert!(size_of::<CLine>() == 24 && size_of::<CCode>() == 7 * 8);

// SAFETY: the struct has only integers and raw pointers.
unsafe impl Plain for CSection {}
// SAFETY: the struct has only integers and raw pointers.
unsafe impl Plain for CFunction {}
// SAFETY: the struct has only integers and raw pointers.
unsafe impl Plain for CLine {}
// SAFETY: the struct has only integers and raw pointers.
unsafe impl Plain for CCode {}

/// Reports *loaded* for an ELF object.
///
/// # Safety
/// `elf`, `sections` and the names must be readable, `object` null or writable; see the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jitlisten_object_loaded(
    elf: *const u8,
    elf_size: usize,
    sections: *const CSection,
    section_count: usize,
    object: *mut u64,
) -> i32 {
    with_active_session(|session| {
        borrowed::check_output(object, "object")?;
        // SAFETY: the caller guarantees that `elf` is readable.
        let bytes = unsafe { borrowed::read_bytes(elf, elf_size, "elf") }?;
        // SAFETY: the caller guarantees that `sections` is readable.
        let sections = unsafe { borrowed::read_array(sections, section_count, "sections") }?;
        // SAFETY: the caller guarantees that the sections' names are readable.
        let id = unsafe { load_object(session, bytes.to_vec(), sections) }?;
        // SAFETY: the pointer was checked above, and the caller vouches that it is writable.
        unsafe { object.write(id.0) };
        Ok(())
    })
}

/// Loads an ELF object. Its sections are at the given addresses, or else at those in its section table.
///
/// # Safety
/// The names of the sections must be null or readable.
unsafe fn load_object(session: &'static Session, elf: Vec<u8>, sections: &[CSection]) -> Result<ObjectId, Failure> {
    let mut placed_sections = Vec::new();
    for section in sections {
        // SAFETY: the caller guarantees that the name is null or readable.
        let name = unsafe { borrowed::read_text_or_empty(section.name, "the name of a section") }?;
        if !name.is_empty() {
            placed_sections.push(Placed::new(name, Address(section.address)));
        }
    }
    // Without given sections, do not call `from_object_at`, which fails if the section table is unreadable.
    let code = match placed_sections.is_empty() {
        true => LoadedCode::from_object(session, Producer::Llvm, elf),
        false => LoadedCode::from_object_at(session, Producer::Llvm, elf, &placed_sections),
    };
    Ok(into_id(code?))
}

/// Reports *loaded* for code that is described by its parts.
///
/// # Safety
/// `code` and the memory it points to must be readable, `object` null or writable; see the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jitlisten_code_loaded(code: *const CCode, object: *mut u64) -> i32 {
    with_active_session(|session| {
        borrowed::check_output(object, "object")?;
        // SAFETY: the caller guarantees that `code` is readable.
        let code = unsafe { borrowed::copy_sized(code, size_of::<usize>() * 3, "code") }?;
        // SAFETY: the caller guarantees that the memory that `code` points to is readable.
        let id = unsafe { load_code(session, &code) }?;
        // SAFETY: the pointer was checked above, and the caller vouches that it is writable.
        unsafe { object.write(id.0) };
        Ok(())
    })
}

/// Loads code that is described by its parts.
///
/// # Safety
/// The memory that `code` points to must be readable.
unsafe fn load_code(session: &'static Session, code: &CCode) -> Result<ObjectId, Failure> {
    // SAFETY: the caller guarantees that `functions` is readable.
    let c_functions = unsafe { borrowed::read_array(code.functions, code.function_count, "functions") }?;
    // SAFETY: the caller guarantees that `lines` is readable.
    let c_lines = unsafe { borrowed::read_array(code.lines, code.line_count, "lines") }?;
    let mut functions = Vec::with_capacity(c_functions.len());
    for function in c_functions {
        // SAFETY: the caller guarantees that the names of functions are null or readable.
        let name = unsafe { borrowed::read_text_or_empty(function.name, "the name of a function") }?;
        let range = borrowed::check_address_range(function.address, function.size, "a function")?;
        functions.push(raw::Function::new(range, name));
    }
    let mut lines = Vec::with_capacity(c_lines.len());
    for line in c_lines {
        // SAFETY: the caller guarantees that the file names of lines are null or readable.
        let file = unsafe { borrowed::read_text_or_empty(line.file, "the file of a line") }?;
        lines.push(raw::Line::new(Address(line.address), file, line.line).column(line.column));
    }
    let mut raw_code = raw::Code::new(Machine::HERE, &functions).lines(&lines);
    if code.eh_frame_size != 0 {
        raw_code = raw_code.eh_frame(borrowed::check_range(code.eh_frame, code.eh_frame_size, "eh_frame")?);
    }
    Ok(into_id(LoadedCode::from_raw(session, &raw_code)?))
}

/// Reports an event of an object, given by its number in the C API.
fn report(object: u64, event: impl FnOnce(&LiveObjects, ObjectId) -> Result<(), jitlisten::Error>) -> i32 {
    with_active_session(|session| {
        if object == 0 {
            return Err(Failure::argument("0 is never an object"));
        }
        Ok(event(LiveObjects::of(session), ObjectId(object))?)
    })
}

/// Records the caller's promise that the object's pages contain no other code.
#[unsafe(no_mangle)]
pub extern "C" fn jitlisten_owns_pages(object: u64) -> i32 {
    report(object, LiveObjects::reported_owns_pages)
}

/// Records the caller's promise that the memory in front of the object's pages is free for an image's headers.
#[unsafe(no_mangle)]
pub extern "C" fn jitlisten_owns_padding(object: u64, size: u64) -> i32 {
    report(object, |objects, id| objects.reported_owns_padding(id, size))
}

/// Reports that an object's code is executable (*finalized*).
#[unsafe(no_mangle)]
pub extern "C" fn jitlisten_finalized(object: u64) -> i32 {
    report(object, LiveObjects::reported_finalized)
}

/// Reports that an object's code is about to be freed (*freeing*).
#[unsafe(no_mangle)]
pub extern "C" fn jitlisten_freeing(object: u64) -> i32 {
    report(object, LiveObjects::reported_freeing)
}
