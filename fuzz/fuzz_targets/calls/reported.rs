//! The two calls for *loaded*, and what has to come of them.

use std::ptr;

use jitlisten::producer::{Placed, set_section_addresses, raw};
use jitlisten::{Address, AddressRange, LoadedObject, Machine};

use crate::api::{self, call};
use crate::input::Input;
use crate::memory;
use crate::text::Text;

/// What the library has to return.
pub(crate) enum Expected {
    InvalidArgument,
    NotUnderstood,
    Object(LoadedObject),
}

impl Expected {
    fn of(parsed: Result<LoadedObject, jitlisten::Error>) -> Expected {
        parsed.map_or(Expected::NotUnderstood, Expected::Object)
    }
}

/// A call that was made.
pub(crate) struct Reported {
    pub(crate) status: i32,
    /// The output: 0 where nothing was written.
    pub(crate) id: u64,
    pub(crate) expected: Expected,
}

/// A mistake of the caller's.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mistake {
    None,
    NullStructure,
    StructureAskew,
    NoOutput,
    MisalignedOutput,
    SmallSize,
    NoArray,
    ArrayAskew,
    HugeCount,
    SecondArrayAskew,
    EhFrameNull,
    EhFrameWraps,
}

impl Mistake {
    /// Mostly none.
    fn read(input: &mut Input<'_>) -> Mistake {
        let all = [
            Mistake::None,
            Mistake::NullStructure,
            Mistake::StructureAskew,
            Mistake::NoOutput,
            Mistake::MisalignedOutput,
            Mistake::SmallSize,
            Mistake::NoArray,
            Mistake::ArrayAskew,
            Mistake::HugeCount,
            Mistake::SecondArrayAskew,
            Mistake::EhFrameNull,
            Mistake::EhFrameWraps,
        ];
        all.get(usize::from(input.u8())).copied().unwrap_or(Mistake::None)
    }

    /// Where the output goes.
    fn output(self, id: &mut u64) -> *mut u64 {
        match self {
            Mistake::NoOutput => ptr::null_mut(),
            Mistake::MisalignedOutput => (&raw mut *id).wrapping_byte_add(1),
            _ => id,
        }
    }
}

/// What no structure can be at. Other pointers that lead nowhere end the program.
fn askew<T>() -> *const T {
    1 as *const T
}

/// Bytes that must be there for as long as an object is alive.
#[derive(Default)]
pub(crate) struct Kept(Vec<Box<[u8]>>);

impl Kept {
    fn keep(&mut self, bytes: Vec<u8>) -> (*const u8, usize) {
        self.0.push(bytes.into_boxed_slice());
        self.0.last().map_or((ptr::null(), 0), |kept| (kept.as_ptr(), kept.len()))
    }
}

/// jitlisten_code_loaded
pub(crate) fn code(input: &mut Input<'_>, kept: &mut Kept) -> Reported {
    let mistake = Mistake::read(input);
    let (names, mut functions) = functions(input);
    let (files, lines) = lines(input, &functions);
    let eh_frame = eh_frame(input, &functions);
    let (eh_frame, eh_frame_size) = eh_frame.map_or((ptr::null(), 0), |bytes| kept.keep(bytes));
    let expected = expected_of_code(&names, &functions, &files, &lines, (eh_frame, eh_frame_size));

    let mut code = api::Code {
        size: size_of::<api::Code>(),
        functions: functions.as_mut_ptr(),
        function_count: functions.len(),
        lines: lines.as_ptr(),
        line_count: lines.len(),
        eh_frame,
        eh_frame_size,
    };
    match mistake {
        Mistake::SmallSize => code.size = usize::from(input.u8()) % 24,
        Mistake::NoArray => (code.functions, code.function_count) = (ptr::null(), 1),
        Mistake::ArrayAskew => (code.functions, code.function_count) = (askew(), 1),
        Mistake::HugeCount => code.function_count = usize::MAX / input.choose(&[1, 2, 24, 25]),
        Mistake::SecondArrayAskew => (code.lines, code.line_count) = (askew(), 1),
        Mistake::EhFrameNull => (code.eh_frame, code.eh_frame_size) = (ptr::null(), 1),
        Mistake::EhFrameWraps => (code.eh_frame, code.eh_frame_size) = (8 as *const u8, usize::MAX),
        _ => {}
    }
    let structure = match mistake {
        Mistake::NullStructure => ptr::null(),
        Mistake::StructureAskew => askew(),
        _ => &raw const code,
    };
    let mut id = 0;
    let output = mistake.output(&mut id);
    // SAFETY: the output is null, misaligned or writable; the header allows all else.
    let status = call(|| unsafe { api::jitlisten_code_loaded(structure, output) });
    let expected = if mistake == Mistake::None { expected } else { Expected::InvalidArgument };
    Reported { status, id, expected }
}

fn functions(input: &mut Input<'_>) -> (Vec<Text>, Vec<api::Function>) {
    let count = match input.u8() {
        255 => 300,
        few => u64::from(few % 9),
    };
    let mut names = Vec::new();
    let mut functions: Vec<api::Function> = Vec::new();
    for index in 0..count {
        // Many are side by side, and have one name.
        let name = if count > 9 && index > 0 { Text::null() } else { Text::name(input) };
        let (address, size) = match (count, functions.last()) {
            (300, Some(last)) => (last.address.wrapping_add(16), last.size),
            _ => (memory::address(input), memory::size(input)),
        };
        let start = functions.first().filter(|_| count > 9).map_or(name.start, |first| first.name);
        functions.push(api::Function { address, size, name: start });
        names.push(name);
    }
    if count > 9 {
        names.truncate(1);
    }
    (names, functions)
}

fn lines(input: &mut Input<'_>, functions: &[api::Function]) -> (Vec<Text>, Vec<api::Line>) {
    let count = input.u8() % 12;
    let mut files = Vec::new();
    let mut lines = Vec::new();
    for _ in 0..count {
        let file = Text::name(input);
        let near = functions.get(usize::from(input.u8()) % 9).map(|function| function.address);
        let address = match near {
            Some(address) => address.wrapping_add(u64::from(input.u8())),
            None => memory::address(input),
        };
        let line = match input.u16() {
            u16::MAX => u32::MAX,
            0xfffe => 1 << 24,
            line => line.into(),
        };
        lines.push(api::Line { address, file: file.start, line, column: input.u8().into() });
        files.push(file);
    }
    (files, lines)
}

/// An `.eh_frame`, true or not.
fn eh_frame(input: &mut Input<'_>, functions: &[api::Function]) -> Option<Vec<u8>> {
    match input.u8() {
        0..=119 => None,
        kind @ 120..=219 => {
            // Entries with absolute addresses, so that it does not matter where they are.
            let rules = |function: &api::Function| tables::Function { start: function.address, size: function.size };
            let mut bytes = tables::encode(functions.iter().map(rules), kind & 1 == 0);
            if kind >= 200 && !bytes.is_empty() {
                let at = usize::from(input.u16()) % bytes.len();
                bytes[at] = input.u8();
            }
            Some(bytes)
        }
        _ => {
            let size = usize::from(input.u8());
            Some(input.bytes(size).to_vec())
        }
    }
}

/// The library reads what it is given; here it is known.
fn expected_of_code(
    names: &[Text],
    functions: &[api::Function],
    files: &[Text],
    lines: &[api::Line],
    eh_frame: (*const u8, usize),
) -> Expected {
    let range = |function: &api::Function| AddressRange::new(Address(function.address), function.size);
    let ranges: Option<Vec<AddressRange>> = functions.iter().map(range).collect();
    let Some(ranges) = ranges else { return Expected::InvalidArgument };
    let names = names.iter().map(|text| &*text.bytes).cycle();
    let reported: Vec<_> = ranges.iter().zip(names).map(|(&range, name)| raw::Function::new(range, name)).collect();
    let row = |line: &api::Line, file| raw::Line::new(Address(line.address), file, line.line).column(line.column);
    let rows = lines.iter().zip(files).map(|(line, file)| row(line, &*file.bytes));
    let rows: Vec<raw::Line<'_>> = rows.collect();
    let eh_frame = AddressRange::new(Address(eh_frame.0 as u64), eh_frame.1 as u64).filter(|range| !range.is_empty());
    let mut code = raw::Code::new(Machine::HERE, &reported).lines(&rows);
    code.eh_frame = eh_frame;
    let impossible = |function: &raw::Function<'_>| {
        let size = function.range.size();
        size == 0 || size > u64::from(u32::MAX) || function.name.is_empty() || function.range.start() == Address(0)
    };
    if reported.is_empty() || reported.iter().any(impossible) {
        return Expected::NotUnderstood;
    }
    match raw::encode(&code).and_then(|object| LoadedObject::parse(&object)) {
        // Hundreds of functions that share one very long name.
        Err(jitlisten::Error::TooMuchData { .. }) => Expected::NotUnderstood,
        object => Expected::Object(object.expect("code that makes sense is an object")),
    }
}

/// What is reported: real objects, some of them changed.
const OBJECTS: [&[u8]; 7] = [
    include_bytes!("../../../jitlisten/testdata/lli-14-mcjit-plain.o"),
    include_bytes!("../../../jitlisten/testdata/lli-14-mcjit-dwarf4.o"),
    include_bytes!("../../../jitlisten/testdata/lli-22-mcjit-dwarf5-large.o"),
    include_bytes!("../../../jitlisten/testdata/lli-22-jitlink-dwarf5.o"),
    include_bytes!("../../../jitlisten/testdata/numba-0.68-llvm22-plain.o"),
    include_bytes!("../../../jitlisten/testdata/numba-0.68-llvm22-empty.o"),
    include_bytes!("../../../jitlisten/testdata/clang-22-aarch64-dwarf5.o"),
];

/// jitlisten_object_loaded
pub(crate) fn object(input: &mut Input<'_>) -> Reported {
    let mistake = Mistake::read(input);
    let elf = elf(input);
    let count = input.u8() % 6;
    let mut names = Vec::new();
    let mut sections = Vec::new();
    for _ in 0..count {
        let name = Text::section(input);
        sections.push(api::Section { name: name.start, address: memory::address(input) });
        names.push(name);
    }
    let expected = expected_of_object(&elf, &names, &sections);

    let (mut start, mut size) = (elf.as_ptr(), elf.len());
    let (mut array, mut count) = (sections.as_ptr(), sections.len());
    let mistake = match mistake {
        Mistake::NullStructure => {
            start = ptr::null();
            mistake
        }
        Mistake::StructureAskew => {
            (start, size) = (ptr::null(), size.max(1));
            mistake
        }
        Mistake::EhFrameWraps => {
            size = usize::MAX;
            mistake
        }
        Mistake::NoArray => {
            (array, count) = (ptr::null(), 1);
            mistake
        }
        Mistake::ArrayAskew => {
            (array, count) = (askew(), 1);
            mistake
        }
        Mistake::HugeCount => {
            count = usize::MAX / input.choose(&[1, 2, 16, 17]);
            mistake
        }
        Mistake::NoOutput | Mistake::MisalignedOutput => mistake,
        _ => Mistake::None,
    };
    let mut id = 0;
    let output = mistake.output(&mut id);
    // SAFETY: the output is null, misaligned or writable; the header allows all else.
    let status = call(|| unsafe { api::jitlisten_object_loaded(start, size, array, count, output) });
    let expected = if mistake == Mistake::None { expected } else { Expected::InvalidArgument };
    Reported { status, id, expected }
}

fn elf(input: &mut Input<'_>) -> Vec<u8> {
    let kind = usize::from(input.u8());
    let Some(object) = OBJECTS.get(kind % 8) else {
        let size = usize::from(input.u16());
        return input.bytes(size).to_vec();
    };
    let mut object = object.to_vec();
    for _ in 0..input.u8() % 8 {
        let at = usize::from(input.u16()) % object.len();
        object[at] = input.u8();
    }
    if kind >= 248 {
        object.truncate(usize::from(input.u16()));
    }
    object
}

fn expected_of_object(elf: &[u8], names: &[Text], sections: &[api::Section]) -> Expected {
    let placed = names.iter().zip(sections);
    let placed = placed.map(|(name, section)| Placed::new(&name.bytes, Address(section.address)));
    let placed: Vec<_> = placed.filter(|placed| !placed.name.is_empty()).collect();
    let mut elf = elf.to_vec();
    if !placed.is_empty() && set_section_addresses(&mut elf, &placed).is_err() {
        return Expected::NotUnderstood;
    }
    Expected::of(LoadedObject::parse(&elf))
}

/// jitlisten_unwind_register: the status, and the registration.
pub(crate) fn unwind(input: &mut Input<'_>) -> (i32, u64, bool) {
    let mistake = Mistake::read(input);
    let (_, functions) = functions(input);
    let bytes = eh_frame(input, &functions).unwrap_or_default();
    let (mut start, mut size) = (bytes.as_ptr(), bytes.len());
    let mut text = memory::address(input);
    let mut text_size = memory::size(input) as usize;
    let invalid = match mistake {
        Mistake::NullStructure => {
            start = ptr::null();
            true
        }
        Mistake::StructureAskew => {
            (start, size) = (ptr::null(), size.max(1));
            true
        }
        Mistake::EhFrameWraps => {
            size = usize::MAX;
            true
        }
        Mistake::HugeCount => {
            (text, text_size) = (u64::MAX, 2);
            true
        }
        Mistake::NoOutput | Mistake::MisalignedOutput => true,
        _ => text.checked_add(text_size as u64).is_none(),
    };
    let mut out = 0;
    let output = if invalid { mistake.output(&mut out) } else { &raw mut out };
    // SAFETY: the output is null, misaligned or writable. The code that the tables describe never runs.
    let status = call(|| unsafe { api::jitlisten_unwind_register(start, size, text, text_size, output) });
    (status, out, invalid)
}

/// Unwind tables that are true of functions like those in [`crate::memory`].
mod tables {
    pub(super) struct Function {
        pub(super) start: u64,
        pub(super) size: u64,
    }

    /// Version 1, `zR`, factors 1 and -8, return address 16, pointers absolute; the CFA is `%rsp` + 8.
    const CIE: [u8; 24] = [20, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0, 0x0c, 7, 8, 0x90, 1, 0, 0];

    pub(super) fn encode(functions: impl Iterator<Item = Function>, ended: bool) -> Vec<u8> {
        let mut bytes = CIE.to_vec();
        for function in functions {
            let mut entry = Vec::new();
            entry.extend(28_u32.to_le_bytes());
            entry.extend((bytes.len() as u32 + 4).to_le_bytes());
            entry.extend(function.start.to_le_bytes());
            entry.extend(function.size.to_le_bytes());
            entry.extend([0, 0x41, 0x0e, 16, 0x86, 2, 0, 0]);
            bytes.extend(entry);
        }
        if ended {
            bytes.extend([0; 4]);
        }
        bytes
    }
}
