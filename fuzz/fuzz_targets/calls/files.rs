//! Strict readers for the library's output files, which are removed afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use jitlisten::LoadedObject;
use jitlisten_tests::jitdump_reader::{self, Jitdump};
use object::LittleEndian as LE;
use object::elf;
use object::read::elf::{ElfFile64, FileHeader as _, ProgramHeader as _, SectionHeader as _};
use object::{Object as _, ObjectSymbol as _};

pub(crate) fn map_path() -> PathBuf {
    PathBuf::from(format!("/tmp/perf-{}.map", std::process::id()))
}

/// Checks that the perf map has complete lines that do not overlap, and that it contains `code`.
pub(crate) fn check_map<'a>(code: Option<impl Iterator<Item = &'a LoadedObject>>) {
    let bytes = fs::read(map_path());
    let text = String::from_utf8(bytes.unwrap_or_default()).expect("UTF-8");
    assert!(text.is_empty() || text.ends_with('\n'), "the last line is torn");
    let mut sizes = BTreeMap::new();
    for line in text.split_terminator('\n') {
        let (start, size) = parse_line(line).unwrap_or_else(|| panic!("not a line of a perf map: {line:?}"));
        if (start, size) != (0, 0) {
            assert!(start.checked_add(size).is_some() && size > 0, "{line:?}");
            assert_eq!(sizes.insert(start, size), None, "two lines about one address: {line:?}");
        }
    }
    let entries: Vec<_> = sizes.iter().collect();
    assert!(entries.windows(2).all(|pair| pair[0].0 + pair[0].1 <= *pair[1].0), "lines over one byte: {text}");
    for object in code.into_iter().flatten() {
        for function in object.functions() {
            assert_eq!(sizes.get(&function.range.start().0), Some(&function.range.size()), "{}", function.linkage_name);
        }
    }
}

/// Parses a line `START SIZE name`.
fn parse_line(line: &str) -> Option<(u64, u64)> {
    let (start, rest) = line.split_once(' ')?;
    let (size, name) = rest.split_once(' ')?;
    let number = |text: &str| {
        let is_hexadecimal = text.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
        u64::from_str_radix(text, 16).ok().filter(|_| is_hexadecimal)
    };
    let is_valid_name = name.trim() == name && name.chars().count() >= 3 && !name.chars().any(char::is_control);
    Some((number(start)?, number(size)?)).filter(|_| is_valid_name)
}

/// Checks and removes all jitdumps and images in a directory.
pub(crate) fn check_directory(directory: &Path) {
    for path in jitdump_reader::find(directory) {
        let bytes = fs::read(&path).expect("readable");
        match Jitdump::parse(&bytes) {
            // Other code may have been loaded since, in the padding that held the function's unwind tables.
            Err(fault) if fault.message.contains(": tables over ") => {}
            dump => drop(dump.unwrap_or_else(|fault| panic!("{fault}"))),
        }
        fs::remove_dir_all(path.parent().expect("a directory of its own")).expect("removed");
    }
    check_images(directory);
}

/// Checks that the single jitdump contains all of `code`. No other calls were made while it was being written.
pub(crate) fn check_new_dump<'a>(directory: &Path, code: impl Iterator<Item = &'a LoadedObject>) {
    let mut functions = BTreeSet::new();
    for path in jitdump_reader::find(directory) {
        let dump = jitdump_reader::read(&path);
        functions.extend(dump.functions.iter().map(|function| (function.address, function.code.len() as u64)));
        fs::remove_dir_all(path.parent().expect("a directory of its own")).expect("removed");
    }
    for function in code.flat_map(LoadedObject::functions) {
        let (start, size) = (function.range.start().0, function.range.size());
        // Unreadable functions are omitted, but only if their size exceeds that of any real function.
        assert!(size > 1 << 24 || functions.contains(&(start, size)), "no jitdump has {}", function.linkage_name);
    }
}

fn check_images(directory: &Path) {
    for entry in fs::read_dir(directory).expect("readable").flatten() {
        for image in fs::read_dir(entry.path()).into_iter().flatten().flatten() {
            if image.path().extension().is_some_and(|extension| extension == "so") {
                check_image(&fs::read(image.path()).expect("readable"));
                fs::remove_file(image.path()).expect("removed");
            }
        }
    }
}

/// Checks the segment, sections and symbols of an image. The `image` fuzz target checks more.
fn check_image(file: &[u8]) {
    let elf = ElfFile64::<LE>::parse(file).expect("an ELF file");
    let programs = elf.elf_header().program_headers(LE, file).expect("program headers");
    let loads: Vec<_> = programs.iter().filter(|program| program.p_type(LE) == elf::PT_LOAD).collect();
    let [load] = loads[..] else { panic!("{} segments", loads.len()) };
    let (offset, size) = (load.p_offset(LE), load.p_filesz(LE));
    assert!(offset == load.p_vaddr(LE) && offset + size <= file.len() as u64);
    for section in elf.elf_section_table().iter().skip(1) {
        elf.elf_section_table().section_name(LE, section).expect("a name");
        section.data(LE, file).expect("its bytes");
    }
    for symbol in elf.symbols() {
        assert!(!symbol.name_bytes().expect("a name").is_empty());
        assert!(symbol.address() + symbol.size() <= offset + size);
    }
}
