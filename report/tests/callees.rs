//! Names of library functions without a symbol, from the compiled code that calls them: handwritten recordings and ELF
//! files.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use common::{Writer, scratch_directory};
use jitlisten_report::{Lookup, Options, RecordingFile, Report};

const PROGBITS: u32 = 1;
const SYMTAB: u32 = 2;
const STRTAB: u32 = 3;
const NOTE: u32 = 7;
/// Functions of the library, in its unwind table only.
const FUNCTIONS: [u64; 2] = [0x1100, 0x1200];
const FUNCTION_SIZE: u64 = 0x100;
const BUILD_ID: [u8; 4] = [0xab, 0xcd, 0xef, 0x01];

/// Section of an ELF file; a symbol table belongs to the section after it.
type Section<'a> = (&'a str, u32, u64, Vec<u8>);

fn words(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn longs(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// Returns an ELF file whose addresses are its offsets. Libraries have a dynamic section, unlike images.
fn elf(is_library: bool, sections: &[Section<'_>]) -> Vec<u8> {
    const CONTENTS: u64 = 0x2000;
    let mut names = vec![0];
    let mut contents = Vec::new();
    let mut headers = vec![0; 64];
    let strings = (".shstrtab", STRTAB, 0, Vec::new());
    for (index, (name, kind, address, bytes)) in sections.iter().chain([&strings]).enumerate() {
        contents.resize(contents.len().next_multiple_of(8), 0);
        headers.extend(words(&[names.len() as u32, *kind]));
        names.extend(name.bytes().chain([0]));
        let bytes = if *name == ".shstrtab" { &names } else { bytes };
        let (link, entry_size) = if *kind == SYMTAB { (index as u32 + 2, 24) } else { (0, 0) };
        headers.extend(longs(&[0, *address, CONTENTS + contents.len() as u64, bytes.len() as u64]));
        headers.extend(words(&[link, 0]));
        headers.extend(longs(&[4, entry_size]));
        contents.extend(bytes);
    }
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(16, 0);
    file.extend(words(&[3 | 62 << 16, 1]));
    file.extend(longs(&[0, 64, CONTENTS + contents.len() as u64]));
    let (program_headers, section_headers) = (1 + u32::from(is_library), sections.len() as u32 + 2);
    file.extend(words(&[0, 64 | 56 << 16, program_headers | 64 << 16, section_headers | (section_headers - 1) << 16]));
    file.extend(words(&[1, 5]));
    file.extend(longs(&[0, 0, 0, CONTENTS, CONTENTS, 0x1000]));
    if is_library {
        file.extend(words(&[2, 4]));
        file.extend(longs(&[0x1000, 0x1000, 0x1000, 0, 0, 8]));
    }
    file.resize(CONTENTS as usize, 0);
    file.extend(contents);
    file.extend(headers);
    file
}

fn build_id() -> Section<'static> {
    (".note.gnu.build-id", NOTE, 0x200, [words(&[4, 4, 3]), b"GNU\0".to_vec(), BUILD_ID.to_vec()].concat())
}

fn library() -> Vec<u8> {
    const TABLE: u64 = 0x1800;
    const INDEX: u64 = 0x1c00;
    // Absolute addresses of eight bytes.
    let mut table = [words(&[16, 0]), b"\x01zR\0\x01\x78\x10\x01\x04\0\0\0".to_vec()].concat();
    let mut entries = Vec::new();
    for start in FUNCTIONS {
        entries.extend(words(&[start, TABLE + table.len() as u64].map(|address| address.wrapping_sub(INDEX) as u32)));
        table.extend(words(&[24, table.len() as u32 + 4]));
        table.extend(&longs(&[start, FUNCTION_SIZE, 0])[..20]);
    }
    table.extend([0; 4]);
    let index = [vec![1, 3, 3, 0x3b], words(&[TABLE as u32, FUNCTIONS.len() as u32]), entries].concat();
    elf(true, &[(".eh_frame", PROGBITS, TABLE, table), (".eh_frame_hdr", PROGBITS, INDEX, index), build_id()])
}

/// Returns a symbol table with one function, and its names.
fn symbols(name: &str, function: u64, size: u64) -> [Section<'static>; 2] {
    let mut symbols = vec![0; 24];
    symbols.extend(words(&[1, 2 | 1 << 16]));
    symbols.extend(longs(&[function, size]));
    [(".symtab", SYMTAB, 0, symbols), (".strtab", STRTAB, 0, format!("\0{name}\0").into_bytes())]
}

/// Process of a recording: where its library is, and where compiled code is, if any.
struct Process {
    pid: u32,
    library: u64,
    image: Option<u64>,
    /// Address of the second function, or of another library's function that jumps to it, as compiled code contains it.
    called: Option<u64>,
}

impl Process {
    /// Writes a recording with a sample at each of these offsets in the library.
    fn record(&self, directory: &Path, offsets: &[u64]) -> RecordingFile {
        let mut writer = Writer::default();
        let library = directory.join("libwork.so");
        writer.mmap(self.pid, (self.library, self.library + 0x2000), 0, library.to_str().unwrap(), 1);
        let path = directory.join(format!("{}.data", self.pid));
        let mut caller = 0x10;
        if let Some(image) = self.image {
            let images = path.with_extension("data.images");
            fs::create_dir_all(&images).unwrap();
            let mut callees = format!("to {:x} cosf64\nto {:x} cos\n", self.start(0), self.start(0));
            match self.called {
                Some(target) => callees.push_str(&format!("to {target:x} outer\n")),
                None => callees.push_str("at 10fd outer\n"),
            }
            // mov $target, %rax; call *%rax
            let target = self.called.unwrap_or_default().to_le_bytes();
            let code = [b"\x90\x90\x90\x90\x90\x48\xb8", &target[..], b"\xff\xd0\xc3"].concat();
            let mut sections = vec![(".text", PROGBITS, 0x10f0, code)];
            sections.extend(symbols("compiled", 0x10f0, 0x20));
            sections.push((".jitlisten.callees", PROGBITS, 0, callees.into_bytes()));
            let file = images.join(format!("image-{}-1-object-0.so", self.pid));
            fs::write(&file, elf(false, &sections)).unwrap();
            writer.mmap(self.pid, (image, image + 0x2000), 0, file.to_str().unwrap(), 1);
            // Return address of the call of `outer`.
            caller = image + 0x1101;
        }
        for (offset, time) in offsets.iter().zip(2..) {
            writer.sample((self.pid, self.pid), time, 1, &[self.library + offset, caller]);
        }
        fs::write(&path, writer.file()).unwrap();
        RecordingFile::from(path.as_path())
    }

    fn start(&self, function: usize) -> u64 {
        self.library + FUNCTIONS[function]
    }
}

fn functions(files: &[RecordingFile], root: PathBuf) -> BTreeMap<String, u64> {
    let lookup = Lookup { roots: vec![root], ..Lookup::default() };
    let report = Report::open_all(files, &Options { lookup, ..Options::default() }).unwrap();
    let rows = report.profile.functions.iter().filter(|row| row.shares.self_count.samples != 0);
    rows.map(|row| (row.name.clone(), row.shares.self_count.samples)).collect()
}

#[test]
fn functions_of_merged_recordings_have_one_name() {
    let directory = scratch_directory("callees-merged");
    fs::write(directory.join("libwork.so"), library()).unwrap();
    // The instructions are partly the same.
    let offsets = |function: usize| FUNCTIONS[function] + 0x10;
    let python = Process { pid: 1, library: 0x10_0000, image: None, called: None };
    let python = python.record(&directory, &[offsets(0), 0x1120, offsets(1)]);
    let numba = Process { pid: 2, library: 0x20_0000, image: Some(0x30_0000), called: Some(0x50_0000) };
    let numba = numba.record(&directory, &[offsets(0), 0x1130, offsets(1)]);
    let expected = BTreeMap::from([("cos".to_owned(), 4), ("outer".to_owned(), 2)]);
    let files = [python, numba];
    assert_eq!(functions(&files, directory.clone()), expected);
    let files = [files[1].clone(), files[0].clone()];
    assert_eq!(functions(&files, directory), expected);
}

#[test]
fn debug_information_precedes_the_name_of_an_entry() {
    const LIBRARY: u64 = 0x20_0000;
    let directory = scratch_directory("callees-debug");
    fs::write(directory.join("libwork.so"), library()).unwrap();
    let debug = directory.join("root/usr/lib/debug/.build-id/ab/cdef01.debug");
    fs::create_dir_all(debug.parent().unwrap()).unwrap();
    let names = |called: Option<u64>, name: &str, function: usize| {
        let process = Process { pid: 2, library: LIBRARY, image: Some(0x30_0000), called };
        let files = [process.record(&directory, &[0x1110, 0x1210])];
        let [table, names] = symbols(name, FUNCTIONS[function], FUNCTION_SIZE);
        fs::write(&debug, elf(true, &[table, names, build_id()])).unwrap();
        functions(&files, directory.join("root")).into_keys().collect::<Vec<_>>()
    };
    assert_eq!(names(None, "__cos_fma", 0), ["cos", "outer"], "a reference to the start is exact");
    assert_eq!(names(None, "leaf", 1), ["cos", "leaf"]);
    let same_library = Some(LIBRARY + 0x1400);
    assert_eq!(names(same_library, "unused", 0), ["cos", "outer"]);
    assert_eq!(names(same_library, "leaf", 1), ["cos", "leaf"]);
    assert_eq!(names(Some(0x50_0000), "leaf", 1), ["cos", "outer"], "another library jumps to the function");
    // Opening a pipe would wait for a writer.
    fs::remove_file(&debug).unwrap();
    let mode = rustix::fs::Mode::from(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &debug, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let process = Process { pid: 2, library: LIBRARY, image: Some(0x30_0000), called: None };
    let files = [process.record(&directory, &[0x1210])];
    assert_eq!(functions(&files, directory.join("root")), BTreeMap::from([("outer".to_owned(), 1)]));
}
