//! ELF header of an image in the memory of the process, and thus in core files.
//!
//! Readers of a core file open each image by its path. If the file was removed, elfutils (eu-stack, pystack,
//! coredumpctl) reads the image from the dumped memory instead, provided that the header is complete. Therefore the
//! header in memory omits section headers, because sections are not mapped. Instead, it has a dynamic section that
//! points to symbols in the header padding (`dwfl_segment_report_module`, `core_file_read_eagerly`, `find_dynsym`).
//!
//! ```text
//!   0       ELF header (no sections), program headers (PT_DYNAMIC where the file has PT_GNU_STACK), build-id
//!           .eh_frame_hdr, .eh_frame, as in the file
//!           .dynamic  .dynsym  .hash  .dynstr
//! ```
//!
//! The file itself has no dynamic section. The in-memory header costs no additional memory, because the page is private
//! to the process already: see [`include_in_core_dumps`](super::pages::include_in_core_dumps). Functions that do not
//! fit are omitted.

use object::elf;

use super::layout::{HEADERS_END, Layout, UnwindSections, program_header_offset};
use super::symbols::Symbol;

/// Index of the program header that `PT_DYNAMIC` replaces.
pub(super) const STACK_HEADER: u64 = 2;
/// Size of the dynamic entries `DT_HASH`, `DT_SYMTAB`, `DT_STRTAB`, `DT_STRSZ`, `DT_SYMENT` and `DT_NULL`.
const DYNAMIC_SIZE: u64 = 6 * 16;
const SYMBOL_SIZE: u64 = 24;
/// Byte ranges of `e_shoff`, and of `e_shnum` and `e_shstrndx`, in the ELF header.
const SECTION_FIELDS: [std::ops::Range<usize>; 2] = [40..48, 60..64];

/// Returns the in-memory header, which replaces the bytes from file offset 0. Empty if the header is not mapped or has
/// no space for a function.
pub(super) fn build_header(file: &[u8], layout: &Layout, eh_frame_size: u64, symbols: &[Symbol<'_>]) -> Vec<u8> {
    let unwind_end = match layout.unwind {
        UnwindSections::Mapped { eh_frame, .. } if eh_frame < layout.code_start => eh_frame + eh_frame_size,
        _ => HEADERS_END,
    };
    let dynamic = unwind_end.next_multiple_of(8);
    let front_size = if layout.mapped_start == 0 { layout.code_start } else { 0 };
    let fitting = fitting_symbols(symbols, front_size.saturating_sub(dynamic));
    let (false, Some(file_header)) = (fitting.is_empty(), file.get(..dynamic as usize)) else { return Vec::new() };

    let mut header = file_header.to_vec();
    for field in SECTION_FIELDS {
        header[field].fill(0);
    }
    let offset = program_header_offset(STACK_HEADER) as usize;
    let fields = [dynamic, dynamic, dynamic, DYNAMIC_SIZE, DYNAMIC_SIZE, 8];
    header[offset..offset + 4].copy_from_slice(&elf::PT_DYNAMIC.0.to_le_bytes());
    header[offset + 4..offset + 8].copy_from_slice(&elf::PF_R.0.to_le_bytes());
    for (index, field) in fields.into_iter().enumerate() {
        header[offset + 8 + index * 8..][..8].copy_from_slice(&field.to_le_bytes());
    }
    write_dynamic(&mut header, dynamic, &fitting);
    header
}

/// Returns the functions whose symbols fit into `space` bytes, each with its displayed name.
fn fitting_symbols<'a, 'b>(symbols: &'a [Symbol<'b>], space: u64) -> Vec<&'a Symbol<'b>> {
    let word = size_of::<u32>() as u64;
    // Size without any function: the null symbol, the empty name, and the hash table's counts, bucket and null entry.
    let mut used = DYNAMIC_SIZE + SYMBOL_SIZE + 1 + 4 * word;
    let displayed = symbols.iter().filter(|symbol| symbol.bind == elf::STB_GLOBAL);
    displayed
        .filter(|symbol| {
            let needed = SYMBOL_SIZE + word + symbol.name.len() as u64 + 1;
            let fits = used + needed <= space;
            used += if fits { needed } else { 0 };
            fits
        })
        .collect()
}

/// Appends the dynamic section at offset `dynamic`, followed by its tables.
fn write_dynamic(header: &mut Vec<u8>, dynamic: u64, symbols: &[&Symbol<'_>]) {
    let count = symbols.len() as u64 + 1;
    let symtab = dynamic + DYNAMIC_SIZE;
    let hash = symtab + count * SYMBOL_SIZE;
    let strtab = hash + (3 + count) * size_of::<u32>() as u64;
    let strings = symbols.iter().map(|symbol| symbol.name.len() as u64 + 1).sum::<u64>() + 1;
    let tags = [elf::DT_HASH, elf::DT_SYMTAB, elf::DT_STRTAB, elf::DT_STRSZ, elf::DT_SYMENT, elf::DT_NULL];
    for (tag, value) in tags.into_iter().zip([hash, symtab, strtab, strings, SYMBOL_SIZE, 0]) {
        header.extend(tag.0.to_le_bytes());
        header.extend(value.to_le_bytes());
    }
    header.extend([0; SYMBOL_SIZE as usize]);
    let mut name = 1_u32;
    for symbol in symbols {
        header.extend(name.to_le_bytes());
        // Use section index 1, although there are no sections, because elfutils adds the bias only to symbols with a
        // section.
        header.extend([elf::STB_GLOBAL.0 << 4 | elf::STT_FUNC.0, 0, 1, 0]);
        header.extend(symbol.offset.to_le_bytes());
        header.extend(symbol.size.to_le_bytes());
        name += symbol.name.len() as u32 + 1;
    }
    // A single hash bucket that chains all symbols is enough, because no reader looks symbols up by name.
    let chain = (1..count as u32).map(|index| if u64::from(index) + 1 < count { index + 1 } else { 0 });
    for word in [1, count as u32, 1, 0].into_iter().chain(chain) {
        header.extend(word.to_le_bytes());
    }
    header.push(0);
    for symbol in symbols {
        header.extend(symbol.name);
        header.push(0);
    }
}
