//! Rules of OpenTelemetry's eBPF profiler, and of Parca's agent built on it, for naming and unwinding the code of a
//! mapping. The profiler itself needs the kernel's eBPF and a separate build, so these tests check its rules, as its
//! sources state them (`process/process.go`, `process/types.go`, `processmanager/processinfo.go`, `libpf/pfelf`,
//! `libpf/fileid.go`; August 2026):
//!
//! 1. `/proc/PID/maps` shows an executable mapping with an inode, and a path that begins neither with `/memfd:` nor
//!    with `[anon:`.
//! 2. The profiler reads the file through `/proc/PID/map_files/START-END`, even if the path no longer leads to that
//!    file.
//! 3. The file is a 64-bit ELF file, and an executable `PT_LOAD` program header contains the mapping's offset.
//! 4. The profiler identifies a file by its first and last 4,096 bytes and its size: no two files may agree in all
//!    three.
//! 5. The file has a build ID, in a section or in `PT_NOTE`; a server uses it to find the file's symbols.
//! 6. The file has unwind tables for the mapped code, in `PT_GNU_EH_FRAME` or `.eh_frame`.

use std::collections::BTreeSet;
use std::fs;

use gimli::{BaseAddresses, EhFrame, LittleEndian, UnwindSection as _};
use jitlisten_tests::host::Preload;
use jitlisten_tests::image::with_images;
use jitlisten_tests::integration::Integration;
use jitlisten_tests::scenario::{self, CHAIN};
use jitlisten_tests::tool::{self, Absence};
use object::read::elf::{ElfFile64, FileHeader as _, ProgramHeader as _};
use object::{Endianness, Object as _, ObjectSection as _, ObjectSymbol as _, elf};

/// A line of `/proc/PID/maps`.
struct Mapping {
    start: u64,
    end: u64,
    protection: String,
    offset: u64,
    inode: u64,
    path: String,
}

fn mappings(pid: u32) -> Vec<Mapping> {
    let hex = |digits: &str| u64::from_str_radix(digits, 16).expect("a number");
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("the host runs");
    let mapping = |line: &str| {
        let mut words = line.split_whitespace();
        let mut next_word = || words.next().unwrap_or_default().to_owned();
        let (range, protection, offset, _device, inode) =
            (next_word(), next_word(), next_word(), next_word(), next_word());
        let (start, end) = range.split_once('-').expect("a range");
        let path = line.split_once(&format!(" {inode} ")).map_or("", |(_, path)| path).trim().to_owned();
        let inode = inode.parse().expect("a number");
        Mapping { start: hex(start), end: hex(end), protection, offset: hex(&offset), inode, path }
    };
    maps.lines().map(mapping).collect()
}

/// Checks rules 1 and 2. Returns the bytes of the mapped file.
fn read_mapped_file(pid: u32, mapping: &Mapping) -> std::io::Result<Vec<u8>> {
    let path = &mapping.path;
    assert_eq!(&mapping.protection[..3], "r-x", "{path}");
    assert!(mapping.inode != 0 && path.starts_with('/') && !path.starts_with("/memfd:"), "{path}");
    fs::read(format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end))
}

/// Checks rules 3, 5 and 6. Returns the names of all functions that have unwind rules.
fn functions_with_rules(mapping: &Mapping, bytes: &[u8]) -> Vec<String> {
    let path = &mapping.path;
    let file = ElfFile64::<Endianness>::parse(bytes).unwrap_or_else(|error| panic!("{path}: {error}"));
    let endian = file.endian();
    let headers = file.elf_header().program_headers(endian, bytes).expect("program headers");
    let contains_mapping = |offset: u64, size: u64| (offset & !0xfff..offset + size).contains(&mapping.offset);
    let mut loads = headers.iter().filter(|header| {
        header.p_type(endian) == elf::PT_LOAD
            && header.p_flags(endian).contains(elf::PF_X)
            && contains_mapping(header.p_offset(endian), header.p_filesz(endian))
    });
    let load = loads.next().unwrap_or_else(|| panic!("{path}: no executable PT_LOAD has {:#x}", mapping.offset));
    let bias = mapping.start - (load.p_vaddr(endian) - (load.p_offset(endian) - mapping.offset));
    assert_eq!(file.build_id().expect("notes").map(<[u8]>::len), Some(20), "{path}");

    let section = file.section_by_name(".eh_frame").unwrap_or_else(|| panic!("{path}: no .eh_frame"));
    let eh_frame = EhFrame::new(section.data().expect("bytes"), LittleEndian);
    let bases = BaseAddresses::default().set_eh_frame(section.address());
    let mut entries = eh_frame.entries(&bases);
    let mut starts = BTreeSet::new();
    while let Some(entry) = entries.next().expect("an entry") {
        if let gimli::CieOrFde::Fde(fde) = entry {
            let fde = fde.parse(EhFrame::cie_from_offset).expect("an FDE");
            let (start, end) = (bias + fde.initial_address(), bias + fde.initial_address() + fde.len());
            assert!(mapping.start <= start && end <= mapping.end, "{path}: a rule for code that is not mapped");
            starts.insert(fde.initial_address());
        }
    }
    let symbols = file.symbols().filter(|symbol| starts.contains(&symbol.address()));
    symbols.filter_map(|symbol| symbol.name().ok().map(str::to_owned)).collect()
}

#[test]
fn images_obey_the_rules_of_ebpf_profilers() {
    for sinks in ["image,unwind", "image,unwind,modules"] {
        let Some(host) = Integration::Numba("numba-0.68.1").chain(300, &[]) else { return };
        let host = with_images(host).variable("JITLISTEN", sinks);
        let mut running = host.start(Preload::Library);
        running.wait_for_line("running");
        let pid = running.pid();
        let images: Vec<Mapping> =
            mappings(pid).into_iter().filter(|mapping| mapping.path.contains("/object-")).collect();
        let (mut symbols, mut identities) = (Vec::new(), BTreeSet::new());
        for image in &images {
            // The profiler can read even a deleted file.
            fs::remove_file(&image.path).expect("it is ours");
            let bytes = match read_mapped_file(pid, image) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                    return tool::skip("/proc/PID/map_files", "only root may read it", Absence::IsAllowed);
                }
                Err(error) => panic!("{}: {error}", image.path),
            };
            symbols.extend(functions_with_rules(image, &bytes));
            let (head, tail) = (bytes[..4096].to_vec(), bytes[bytes.len() - 4096..].to_vec());
            assert!(identities.insert((head, tail, bytes.len())), "{} looks like another image", image.path);
        }
        for name in CHAIN {
            assert!(symbols.iter().any(|symbol| scenario::names_function(symbol, name)), "{name}: {symbols:#?}");
        }
        let is_anonymous_code = |mapping: &&Mapping| mapping.protection.starts_with("r-x") && mapping.inode == 0;
        let anonymous_code: Vec<String> =
            mappings(pid).iter().filter(is_anonymous_code).map(|mapping| mapping.path.clone()).collect();
        assert!(
            anonymous_code.iter().all(|path| path.starts_with('[')),
            "code that such a profiler does not see: {anonymous_code:?}"
        );
    }
}
