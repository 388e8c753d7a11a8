//! The two API calls that report loaded code, and their expected effects.

use std::ptr;

use jitlisten::producer::{Placed, raw, set_section_addresses};
use jitlisten::{Address, AddressRange, LoadedObject, Machine};

use crate::api::{self, call};
use crate::input::Input;
use crate::memory;
use crate::text::Text;

/// Expected effect of a call.
pub(crate) enum Expected {
    InvalidArgument,
    NotUnderstood,
    Object(LoadedObject),
}

impl Expected {
    fn from_parsed(parsed: Result<LoadedObject, jitlisten::Error>) -> Expected {
        parsed.map_or(Expected::NotUnderstood, Expected::Object)
    }
}

/// Outcome of a call: status, object ID and expected effect.
pub(crate) struct Reported {
    pub(crate) status: i32,
    /// Object ID that the call returned; 0 if it wrote none.
    pub(crate) id: u64,
    pub(crate) expected: Expected,
}

/// Deliberate mistake in the arguments of a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mistake {
    None,
    NullStructure,
    MisalignedStructure,
    NoOutput,
    MisalignedOutput,
    SmallSize,
    NoArray,
    MisalignedArray,
    HugeCount,
    MisalignedSecondArray,
    EhFrameNull,
    EhFrameWraps,
}

impl Mistake {
    /// Chooses a mistake, usually none.
    fn read(input: &mut Input<'_>) -> Mistake {
        let mistakes = [
            Mistake::None,
            Mistake::NullStructure,
            Mistake::MisalignedStructure,
            Mistake::NoOutput,
            Mistake::MisalignedOutput,
            Mistake::SmallSize,
            Mistake::NoArray,
            Mistake::MisalignedArray,
            Mistake::HugeCount,
            Mistake::MisalignedSecondArray,
            Mistake::EhFrameNull,
            Mistake::EhFrameWraps,
        ];
        mistakes.get(usize::from(input.u8())).copied().unwrap_or(Mistake::None)
    }

    /// Returns the pointer to pass for the output.
    fn output(self, id: &mut u64) -> *mut u64 {
        match self {
            Mistake::NoOutput => ptr::null_mut(),
            Mistake::MisalignedOutput => (&raw mut *id).wrapping_byte_add(1),
            _ => id,
        }
    }
}

/// Returns a misaligned pointer. Other invalid pointers would crash the program.
fn misaligned<T>() -> *const T {
    1 as *const T
}

/// Buffers that must stay valid as long as their objects are live.
#[derive(Default)]
pub(crate) struct Buffers(Vec<Box<[u8]>>);

impl Buffers {
    fn keep(&mut self, bytes: Vec<u8>) -> (*const u8, usize) {
        self.0.push(bytes.into_boxed_slice());
        self.0.last().map_or((ptr::null(), 0), |buffer| (buffer.as_ptr(), buffer.len()))
    }
}

/// Calls `jitlisten_code_loaded`.
pub(crate) fn report_code(input: &mut Input<'_>, buffers: &mut Buffers) -> Reported {
    let mistake = Mistake::read(input);
    let (names, mut functions) = read_functions(input);
    let (files, lines) = read_lines(input, &functions);
    let eh_frame = read_eh_frame(input, &functions);
    let (eh_frame, eh_frame_size) = eh_frame.map_or((ptr::null(), 0), |bytes| buffers.keep(bytes));
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
        Mistake::MisalignedArray => (code.functions, code.function_count) = (misaligned(), 1),
        Mistake::HugeCount => code.function_count = usize::MAX / input.choose(&[1, 2, 24, 25]),
        Mistake::MisalignedSecondArray => (code.lines, code.line_count) = (misaligned(), 1),
        Mistake::EhFrameNull => (code.eh_frame, code.eh_frame_size) = (ptr::null(), 1),
        Mistake::EhFrameWraps => (code.eh_frame, code.eh_frame_size) = (8 as *const u8, usize::MAX),
        _ => {}
    }
    let structure = match mistake {
        Mistake::NullStructure => ptr::null(),
        Mistake::MisalignedStructure => misaligned(),
        _ => &raw const code,
    };
    let mut id = 0;
    let output = mistake.output(&mut id);
    // SAFETY: the output pointer is null, misaligned or writable, and the header allows any other argument.
    let status = call(|| unsafe { api::jitlisten_code_loaded(structure, output) });
    let expected = if mistake == Mistake::None { expected } else { Expected::InvalidArgument };
    Reported { status, id, expected }
}

fn read_functions(input: &mut Input<'_>) -> (Vec<Text>, Vec<api::Function>) {
    let count = match input.u8() {
        255 => 300,
        small => u64::from(small % 9),
    };
    let mut names = Vec::new();
    let mut functions: Vec<api::Function> = Vec::new();
    for index in 0..count {
        // Longer lists consist of adjacent functions that share one name.
        let name = if count > 9 && index > 0 { Text::null() } else { Text::name(input) };
        let (address, size) = match (count, functions.last()) {
            (300, Some(last)) => (last.address.wrapping_add(16), last.size),
            _ => (memory::address(input), memory::size(input)),
        };
        let name_pointer = functions.first().filter(|_| count > 9).map_or(name.start, |first| first.name);
        functions.push(api::Function { address, size, name: name_pointer });
        names.push(name);
    }
    if count > 9 {
        names.truncate(1);
    }
    (names, functions)
}

fn read_lines(input: &mut Input<'_>, functions: &[api::Function]) -> (Vec<Text>, Vec<api::Line>) {
    let count = input.u8() % 12;
    let mut files = Vec::new();
    let mut lines = Vec::new();
    for _ in 0..count {
        let file = Text::name(input);
        let function_address = functions.get(usize::from(input.u8()) % 9).map(|function| function.address);
        let address = match function_address {
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

/// Builds a valid or invalid `.eh_frame`.
fn read_eh_frame(input: &mut Input<'_>, functions: &[api::Function]) -> Option<Vec<u8>> {
    match input.u8() {
        0..=119 => None,
        kind @ 120..=219 => {
            // Absolute addresses keep the entries valid at any position.
            let rules = |function: &api::Function| tables::Function { start: function.address, size: function.size };
            let mut bytes = tables::encode(functions.iter().map(rules), kind & 1 == 0);
            if kind >= 200 && !bytes.is_empty() {
                let offset = usize::from(input.u16()) % bytes.len();
                bytes[offset] = input.u8();
            }
            Some(bytes)
        }
        _ => {
            let size = usize::from(input.u8());
            Some(input.bytes(size).to_vec())
        }
    }
}

/// Determines from the input how the library must handle it.
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
    let raw_functions: Vec<_> =
        ranges.iter().zip(names).map(|(&range, name)| raw::Function::new(range, name)).collect();
    let row = |line: &api::Line, file| raw::Line::new(Address(line.address), file, line.line).column(line.column);
    let rows = lines.iter().zip(files).map(|(line, file)| row(line, &*file.bytes));
    let rows: Vec<raw::Line<'_>> = rows.collect();
    let eh_frame = AddressRange::new(Address(eh_frame.0 as u64), eh_frame.1 as u64).filter(|range| !range.is_empty());
    let mut code = raw::Code::new(Machine::HERE, &raw_functions).lines(&rows);
    code.eh_frame = eh_frame;
    let is_invalid = |function: &raw::Function<'_>| {
        let size = function.range.size();
        size == 0 || size > u64::from(u32::MAX) || function.name.is_empty() || function.range.start() == Address(0)
    };
    if raw_functions.is_empty() || raw_functions.iter().any(is_invalid) {
        return Expected::NotUnderstood;
    }
    match raw::encode(&code).and_then(|object| LoadedObject::parse(&object)) {
        // Happens with hundreds of functions that share one very long name.
        Err(jitlisten::Error::TooMuchData { .. }) => Expected::NotUnderstood,
        object => Expected::Object(object.expect("code that makes sense is an object")),
    }
}

/// Real object files to report, which are sometimes modified first.
const OBJECTS: [&[u8]; 7] = [
    include_bytes!("../../../jitlisten/testdata/lli-14-mcjit-plain.o"),
    include_bytes!("../../../jitlisten/testdata/lli-14-mcjit-dwarf4.o"),
    include_bytes!("../../../jitlisten/testdata/lli-22-mcjit-dwarf5-large.o"),
    include_bytes!("../../../jitlisten/testdata/lli-22-jitlink-dwarf5.o"),
    include_bytes!("../../../jitlisten/testdata/numba-0.68-llvm22-plain.o"),
    include_bytes!("../../../jitlisten/testdata/numba-0.68-llvm22-empty.o"),
    include_bytes!("../../../jitlisten/testdata/clang-22-aarch64-dwarf5.o"),
];

/// Calls `jitlisten_object_loaded`.
pub(crate) fn report_object(input: &mut Input<'_>) -> Reported {
    let mistake = Mistake::read(input);
    let elf = read_elf(input);
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
        Mistake::MisalignedStructure => {
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
        Mistake::MisalignedArray => {
            (array, count) = (misaligned(), 1);
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
    // SAFETY: the output pointer is null, misaligned or writable, and the header allows any other argument.
    let status = call(|| unsafe { api::jitlisten_object_loaded(start, size, array, count, output) });
    let expected = if mistake == Mistake::None { expected } else { Expected::InvalidArgument };
    Reported { status, id, expected }
}

fn read_elf(input: &mut Input<'_>) -> Vec<u8> {
    let kind = usize::from(input.u8());
    let Some(object) = OBJECTS.get(kind % 8) else {
        let size = usize::from(input.u16());
        return input.bytes(size).to_vec();
    };
    let mut object = object.to_vec();
    for _ in 0..input.u8() % 8 {
        let offset = usize::from(input.u16()) % object.len();
        object[offset] = input.u8();
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
    Expected::from_parsed(LoadedObject::parse(&elf))
}

/// Calls `jitlisten_unwind_register`. Returns the status, the registration, and true if an argument was invalid.
pub(crate) fn register_unwind(input: &mut Input<'_>) -> (i32, u64, bool) {
    let mistake = Mistake::read(input);
    let (_, functions) = read_functions(input);
    let bytes = read_eh_frame(input, &functions).unwrap_or_default();
    let (mut start, mut size) = (bytes.as_ptr(), bytes.len());
    let mut text = memory::address(input);
    let mut text_size = memory::size(input) as usize;
    let invalid = match mistake {
        Mistake::NullStructure => {
            start = ptr::null();
            true
        }
        Mistake::MisalignedStructure => {
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
    let mut registration = 0;
    let output = if invalid { mistake.output(&mut registration) } else { &raw mut registration };
    // SAFETY: the output pointer is null, misaligned or writable, and no code that the tables describe ever runs.
    let status = call(|| unsafe { api::jitlisten_unwind_register(start, size, text, text_size, output) });
    (status, registration, invalid)
}

/// Unwind tables that are correct for functions like those in [`crate::memory`].
mod tables {
    pub(super) struct Function {
        pub(super) start: u64,
        pub(super) size: u64,
    }

    /// Version 1, augmentation `zR`, alignment factors 1 and -8, return address register 16, absolute pointers; the CFA
    /// is `%rsp` + 8.
    const CIE: [u8; 24] = [20, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0, 0x0c, 7, 8, 0x90, 1, 0, 0];

    pub(super) fn encode(functions: impl Iterator<Item = Function>, with_terminator: bool) -> Vec<u8> {
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
        if with_terminator {
            bytes.extend([0; 4]);
        }
        bytes
    }
}
