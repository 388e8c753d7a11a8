//! The sections of an image, all but the tables of symbols and strings.

#![forbid(unsafe_code)]

use std::borrow::Cow;

use object::elf;
use object::write::elf::SectionHeader;

use super::content::Content;
use super::debug::DebugSection;
use super::layout::{Layout, NOTE, NOTE_SIZE, UnwindPlace};
use super::unwind::Unwind;
use crate::TextRange;

/// One section.
pub(crate) struct Section<'a> {
    pub(crate) name: &'a str,
    /// Its name is missing here; and its offset and size, if it lies behind the pages.
    pub(crate) header: SectionHeader,
    pub(crate) bytes: Bytes<'a>,
}

/// Where the bytes of a section are.
pub(crate) enum Bytes<'a> {
    /// At `sh_offset`, in front of the end of the pages.
    Before(Cow<'a, [u8]>),
    /// The pages have them already.
    InPages,
    /// Behind the pages, anywhere.
    Behind(&'a [u8]),
}

/// All of them, in the order of their offsets.
pub(crate) fn sections<'a>(
    content: &Content<'a>,
    layout: &Layout,
    unwind: &'a Unwind,
    debug: &'a [DebugSection],
) -> Vec<Section<'a>> {
    let mut all = vec![note(content)];
    all.extend(unwind_sections(layout, unwind));
    all.extend(text_sections(content, layout));
    all.sort_by_key(|section| section.header.sh_offset);
    all.extend(debug.iter().map(|section| Section {
        name: &section.name,
        header: SectionHeader { sh_type: elf::SHT_PROGBITS, sh_addralign: 1, ..SectionHeader::default() },
        bytes: Bytes::Behind(&section.bytes),
    }));
    all
}

/// The header of a section that has an address.
fn at(offset: u64, size: u64, align: u64) -> SectionHeader {
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

fn note<'a>(content: &Content<'_>) -> Section<'a> {
    let mut bytes = Vec::with_capacity(NOTE_SIZE as usize);
    for word in [4, 20, elf::NT_GNU_BUILD_ID.0] {
        bytes.extend(u32::to_le_bytes(word));
    }
    bytes.extend(b"GNU\0");
    bytes.extend(content.build_id);
    let mut header = SectionHeader { sh_type: elf::SHT_NOTE, ..at(NOTE, NOTE_SIZE, 4) };
    if content.padding == 0 {
        // Not mapped: a note of the file alone.
        (header.sh_flags, header.sh_addr) = (elf::SectionFlags(0), 0);
    }
    Section { name: ".note.gnu.build-id", header, bytes: Bytes::Before(bytes.into()) }
}

fn unwind_sections<'a>(layout: &Layout, unwind: &'a Unwind) -> Vec<Section<'a>> {
    let size = unwind.eh_frame.len() as u64;
    match layout.unwind {
        _ if size == 0 => Vec::new(),
        UnwindPlace::Mapped { hdr, eh_frame } => vec![
            Section {
                name: ".eh_frame_hdr",
                header: at(hdr, unwind.hdr.len() as u64, 4),
                bytes: Bytes::Before(Cow::Borrowed(&unwind.hdr)),
            },
            Section {
                name: ".eh_frame",
                header: at(eh_frame, size, 8),
                bytes: Bytes::Before(Cow::Borrowed(&unwind.eh_frame)),
            },
        ],
        UnwindPlace::FileOnly { eh_frame } => {
            let header = SectionHeader { sh_flags: elf::SectionFlags(0), ..at(eh_frame, size, 8) };
            vec![Section { name: ".eh_frame", header, bytes: Bytes::Behind(&unwind.eh_frame) }]
        }
    }
}

/// The text; the first one as `.text`, whatever the code model calls it, because valgrind looks for that name.
fn text_sections<'a>(content: &Content<'a>, layout: &Layout) -> Vec<Section<'a>> {
    let text = content.text();
    let mut rename = text.iter().all(|text| &*text.section != ".text");
    let section = |text: &'a TextRange| {
        let name = if std::mem::take(&mut rename) || is_ours(&text.section) { ".text" } else { &text.section };
        let header = at(layout.offset(text.range.start().0), text.range.size(), 1);
        let sh_flags = elf::SHF_ALLOC | elf::SHF_EXECINSTR;
        Section { name, header: SectionHeader { sh_flags, ..header }, bytes: Bytes::InPages }
    };
    text.into_iter().map(section).collect()
}

/// Names that mean something else in an image: a tool that looks for such a section must not find code.
fn is_ours(name: &str) -> bool {
    let ours = [".eh_frame", ".eh_frame_hdr", ".note.gnu.build-id", ".symtab", ".strtab", ".shstrtab"];
    ours.contains(&name) || name.starts_with(".debug_")
}
