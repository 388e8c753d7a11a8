//! The three verbs, reported by a producer.

use std::ffi::c_char;

use jitlisten::producer::{self, Placed, Producer, raw};
use jitlisten::{Address, Machine, ObjectId, Session};

use crate::borrowed::{self, Plain, Texts};
use crate::guard::with_active_session;
use crate::status::Failure;

/// `struct jitlisten_section`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CSection {
    name: *const c_char,
    address: u64,
}

/// `struct jitlisten_function`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CFunction {
    address: u64,
    size: u64,
    name: *const c_char,
}

/// `struct jitlisten_line`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CLine {
    address: u64,
    file: *const c_char,
    line: u32,
    column: u32,
}

/// `struct jitlisten_code`
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

// SAFETY: integers and raw pointers.
unsafe impl Plain for CSection {}
// SAFETY: as above.
unsafe impl Plain for CFunction {}
// SAFETY: as above.
unsafe impl Plain for CLine {}
// SAFETY: as above.
unsafe impl Plain for CCode {}

/// *loaded*, with an ELF object.
///
/// # Safety
/// `object` must be null or point to a writable `uint64_t`.
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
        let bytes = borrowed::memory(elf, elf_size, "elf")?;
        let sections = borrowed::array(sections, section_count, "sections")?;
        let id = placed(session, bytes, &sections)?;
        // SAFETY: checked above; the caller vouches that it can be written.
        unsafe { object.write(number(id)) };
        Ok(())
    })
}

fn placed(session: &Session, elf: Vec<u8>, sections: &[CSection]) -> Result<ObjectId, Failure> {
    let mut names = Texts::default();
    for section in sections {
        names.read(section.name, "the name of a section")?;
    }
    let placed =
        sections.iter().map(|section| Placed { name: names.get(section.name), address: Address(section.address) });
    let placed: Vec<Placed<'_>> = placed.filter(|placed| !placed.name.is_empty()).collect();
    // A caller that gives no sections may have an object whose sections cannot be read.
    let object = match placed.is_empty() {
        true => producer::loaded(session, Producer::Llvm, elf),
        false => producer::loaded_at(session, Producer::Llvm, elf, &placed),
    };
    Ok(object?)
}

/// *loaded*, with parts.
///
/// # Safety
/// `object` must be null or point to a writable `uint64_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jitlisten_code_loaded(code: *const CCode, object: *mut u64) -> i32 {
    with_active_session(|session| {
        borrowed::check_output(object, "object")?;
        let code = borrowed::sized(code, size_of::<usize>() * 3, "code")?;
        let id = reported(session, &code)?;
        // SAFETY: checked above; the caller vouches that it can be written.
        unsafe { object.write(number(id)) };
        Ok(())
    })
}

fn reported(session: &Session, code: &CCode) -> Result<ObjectId, Failure> {
    let from_functions = borrowed::array(code.functions, code.function_count, "functions")?;
    let from_lines = borrowed::array(code.lines, code.line_count, "lines")?;
    let mut texts = Texts::default();
    let mut ranges = Vec::new();
    for function in &from_functions {
        texts.read(function.name, "the name of a function")?;
        ranges.push(borrowed::address_range(function.address, function.size, "a function")?);
    }
    for line in &from_lines {
        texts.read(line.file, "the file of a line")?;
    }
    let functions = from_functions.iter().zip(ranges);
    let functions: Vec<raw::Function<'_>> =
        functions.map(|(function, range)| raw::Function { range, name: texts.get(function.name) }).collect();
    let lines = from_lines.iter().map(|line| raw::Line {
        address: Address(line.address),
        file: texts.get(line.file),
        line: line.line,
        column: line.column,
    });
    let lines: Vec<raw::Line<'_>> = lines.collect();
    let eh_frame = match code.eh_frame_size {
        0 => None,
        size => Some(borrowed::range(code.eh_frame, size, "eh_frame")?),
    };
    let code = raw::Code { machine: Machine::HERE, functions: &functions, lines: &lines, eh_frame };
    Ok(producer::code_loaded(session, &code)?)
}

/// 0 is never an object, so numbers are one up.
fn number(id: ObjectId) -> u64 {
    id.0 + 1
}

fn id(object: u64) -> Result<ObjectId, Failure> {
    object.checked_sub(1).map(ObjectId).ok_or_else(|| Failure::argument("0 is never an object"))
}

/// *finalized*
#[unsafe(no_mangle)]
pub extern "C" fn jitlisten_finalized(object: u64) -> i32 {
    with_active_session(|session| Ok(producer::finalized(session, id(object)?)?))
}

/// *freeing*
#[unsafe(no_mangle)]
pub extern "C" fn jitlisten_freeing(object: u64) -> i32 {
    with_active_session(|session| Ok(producer::freeing(session, id(object)?)?))
}
