//! Fuzz target that parses arbitrary bytes as a line table. The parser must reject it, or return rows that satisfy the
//! documented invariants. The same invariants must hold for the rows of each function in a jitdump.

#![no_main]

use jitlisten::plumbing::fuzzing;
use jitlisten::{LineRows, LoadedObject};
use libfuzzer_sys::fuzz_target;
use object::LittleEndian as LE;
use object::read::elf::FileHeader as _;

/// Object files with each DWARF version that LLVM writes.
const TEMPLATES: [&[u8]; 4] = [
    include_bytes!("../../jitlisten/testdata/numba-0.68-llvm22-dwarf4.o"),
    include_bytes!("../../jitlisten/testdata/lli-14-mcjit-dwarf4.o"),
    include_bytes!("../../jitlisten/testdata/lli-22-mcjit-dwarf5-large.o"),
    include_bytes!("../../jitlisten/testdata/clang-22-aarch64-dwarf5.o"),
];

// The first byte selects the object file, and whether to keep the relocations of its line table. The remaining bytes
// are the line table.
fuzz_target!(|data: &[u8]| {
    let Some((&choice, table)) = data.split_first() else { return };
    let template = TEMPLATES[usize::from(choice) % TEMPLATES.len()];
    let Some(object) = with_line_table(template, table, choice & 0x80 != 0) else { return };
    let Ok(rows) = LineRows::parse(&object) else { return };
    assert!(rows.rows().last().is_none_or(|row| row.end_sequence));
    for pair in rows.rows().windows(2) {
        assert!(pair[0].address < pair[1].address || pair[0].end_sequence && pair[0].address == pair[1].address);
    }
    let functions = LoadedObject::parse(&object).expect("only the line table was changed");
    for function in functions.functions() {
        let range = function.range;
        let line_entries = fuzzing::line_entries(&rows, range);
        assert!(line_entries.windows(2).all(|pair| pair[0].0 < pair[1].0), "{line_entries:?}");
        assert!(
            line_entries
                .iter()
                .all(|(address, _, file)| range.start().0 <= *address && *address < range.end().0 && !file.is_empty())
        );
        assert!(
            line_entries.last().is_none_or(|last| last.0 == range.end().0 - 1),
            "the last row covers the last byte"
        );
    }
});

/// Replaces the object's `.debug_line`; the new bytes are appended to the file.
fn with_line_table(template: &[u8], table: &[u8], keep_relocations: bool) -> Option<Vec<u8>> {
    let mut file = template.to_vec();
    let header = *object::elf::FileHeader64::<LE>::parse(template).ok()?;
    let table_offset = header.e_shoff(LE) as usize;
    let sections = header.sections(LE, template).ok()?;
    let header_size = size_of::<object::elf::SectionHeader64<LE>>();
    for (index, section) in sections.enumerate() {
        let header_offset = table_offset + index.0 * header_size;
        match sections.section_name(LE, section).ok()? {
            // Fields `sh_offset` and `sh_size`.
            b".debug_line" => {
                let data_offset = file.len() as u64;
                file[header_offset + 24..header_offset + 32].copy_from_slice(&data_offset.to_le_bytes());
                file[header_offset + 32..header_offset + 40].copy_from_slice(&(table.len() as u64).to_le_bytes());
                file.extend_from_slice(table);
            }
            b".rela.debug_line" if !keep_relocations => file[header_offset + 32..header_offset + 40].fill(0),
            _ => {}
        }
    }
    Some(file)
}
