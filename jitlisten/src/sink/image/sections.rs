//! Sections of an image, except the symbol table and the string tables.

use std::borrow::Cow;

use object::elf;
use object::write::elf::SectionHeader;

use super::content::Content;
use super::debug::DebugSection;
use super::layout::{Layout, NOTE_OFFSET, NOTE_SIZE, UnwindSections};
use super::unwind::UnwindTables;
use crate::TextRange;

pub(crate) struct Section<'a> {
    pub(crate) name: &'a str,
    /// Section header, excluding the name, and excluding offset and size if the section lies after the pages.
    pub(crate) header: SectionHeader,
    pub(crate) bytes: SectionBytes<'a>,
}

pub(crate) enum SectionBytes<'a> {
    /// At `sh_offset`, before the end of the pages.
    AtOffset(Cow<'a, [u8]>),
    InPages,
    AfterPages(&'a [u8]),
}

/// Returns all sections, sorted by offset.
pub(crate) fn sections<'a>(
    content: &Content<'a>,
    layout: &Layout,
    unwind: &'a UnwindTables,
    debug: &'a [DebugSection],
) -> Vec<Section<'a>> {
    let mut sections = vec![build_id_note(content)];
    sections.extend(unwind_sections(layout, unwind));
    sections.extend(text_sections(content, layout));
    sections.sort_by_key(|section| section.header.sh_offset);
    sections.extend(debug.iter().map(|section| Section {
        name: &section.name,
        header: SectionHeader { sh_type: elf::SHT_PROGBITS, sh_addralign: 1, ..SectionHeader::default() },
        bytes: SectionBytes::AfterPages(&section.bytes),
    }));
    sections
}

/// Returns the header of a section that has an address (`SHF_ALLOC`).
fn alloc_header(offset: u64, size: u64, align: u64) -> SectionHeader {
    SectionHeader {
        sh_type: elf::SHT_PROGBITS,
        sh_flags: elf::SHF_ALLOC,
        sh_addr: offset,
        sh_offset: offset,
        sh_size: size,
        sh_addralign: align,
        ..SectionHeader::default()
    }
}

fn build_id_note<'a>(content: &Content<'_>) -> Section<'a> {
    let mut bytes = Vec::with_capacity(NOTE_SIZE as usize);
    for word in [4, 20, elf::NT_GNU_BUILD_ID.0] {
        bytes.extend(u32::to_le_bytes(word));
    }
    bytes.extend(b"GNU\0");
    bytes.extend(content.build_id);
    let mut header = SectionHeader { sh_type: elf::SHT_NOTE, ..alloc_header(NOTE_OFFSET, NOTE_SIZE, 4) };
    if content.padding == 0 {
        // The note is not mapped, so it has no address.
        (header.sh_flags, header.sh_addr) = (elf::SectionFlags(0), 0);
    }
    Section { name: ".note.gnu.build-id", header, bytes: SectionBytes::AtOffset(bytes.into()) }
}

fn unwind_sections<'a>(layout: &Layout, unwind: &'a UnwindTables) -> Vec<Section<'a>> {
    let size = unwind.eh_frame.len() as u64;
    match layout.unwind {
        _ if size == 0 => Vec::new(),
        UnwindSections::Mapped { hdr, eh_frame } => vec![
            Section {
                name: ".eh_frame_hdr",
                header: alloc_header(hdr, unwind.hdr.len() as u64, 4),
                bytes: SectionBytes::AtOffset(Cow::Borrowed(&unwind.hdr)),
            },
            Section {
                name: ".eh_frame",
                header: alloc_header(eh_frame, size, 8),
                bytes: SectionBytes::AtOffset(Cow::Borrowed(&unwind.eh_frame)),
            },
        ],
        UnwindSections::FileOnly { eh_frame } => {
            let header = SectionHeader { sh_flags: elf::SectionFlags(0), ..alloc_header(eh_frame, size, 8) };
            vec![Section { name: ".eh_frame", header, bytes: SectionBytes::AfterPages(&unwind.eh_frame) }]
        }
    }
}

/// Returns the text sections. The first is always named `.text`, regardless of its name in the code model, because
/// valgrind looks for that name.
fn text_sections<'a>(content: &Content<'a>, layout: &Layout) -> Vec<Section<'a>> {
    let text = content.text();
    let mut needs_text_name = text.iter().all(|text| &*text.section != ".text");
    let section = |text: &'a TextRange| {
        let name =
            if std::mem::take(&mut needs_text_name) || is_reserved(&text.section) { ".text" } else { &text.section };
        let header = alloc_header(layout.offset(text.range.start().0), text.range.size(), 1);
        let sh_flags = elf::SHF_ALLOC | elf::SHF_EXECINSTR;
        Section { name, header: SectionHeader { sh_flags, ..header }, bytes: SectionBytes::InPages }
    };
    text.into_iter().map(section).collect()
}

/// Returns true for section names that have a special meaning in an image. Code must not have such a name.
fn is_reserved(name: &str) -> bool {
    let reserved = [".eh_frame", ".eh_frame_hdr", ".note.gnu.build-id", ".symtab", ".strtab", ".shstrtab"];
    reserved.contains(&name) || name.starts_with(".debug_")
}
