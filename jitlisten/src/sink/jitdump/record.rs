//! Encoder for jitdump records. Names and order of the fields are those of the kernel's `tools/perf/util/jitdump.h`;
//! `tools/perf/Documentation/jitdump-specification.txt` explains the fields.

use crate::{AddressRange, Machine};

pub(super) const JITHEADER_MAGIC: u32 = 0x4A69_5444; // "DTiJ" in the file
pub(super) const JITHEADER_VERSION: u32 = 1;
pub(super) const JITHEADER_SIZE: usize = 40;

pub(super) const JIT_CODE_LOAD: u32 = 0;
pub(super) const JIT_CODE_DEBUG_INFO: u32 = 2;
pub(super) const JIT_CODE_CLOSE: u32 = 3;
pub(super) const JIT_CODE_UNWINDING_INFO: u32 = 4;

/// Encodes `struct jitheader`. The flags are 0, because perf rejects a file with a flag that it does not know.
pub(super) fn encode_header(machine: Machine, pid: u32, timestamp: u64) -> [u8; JITHEADER_SIZE] {
    let elf_mach = match machine {
        Machine::X86_64 => object::elf::EM_X86_64,
        Machine::Aarch64 => object::elf::EM_AARCH64,
    };
    let mut bytes = [0; JITHEADER_SIZE];
    let words = [JITHEADER_MAGIC, JITHEADER_VERSION, JITHEADER_SIZE as u32, u32::from(elf_mach.0), 0, pid];
    let fields = words.into_iter().flat_map(u32::to_le_bytes).chain(timestamp.to_le_bytes());
    bytes.iter_mut().zip(fields).for_each(|(byte, field)| *byte = field);
    bytes
}

/// `struct jr_code_load` without the name and the code.
#[derive(Clone, Copy, Debug)]
pub(super) struct CodeLoad {
    pub(super) pid: u32,
    pub(super) tid: u32,
    /// Code range, written as `code_addr` and `code_size`. `vma` equals `code_addr`.
    pub(super) code: AddressRange,
    pub(super) code_index: u64,
}

/// Row of a line table: `struct debug_entry` without the discriminator, which perf ignores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sink) struct DebugEntry<'a> {
    pub(in crate::sink) addr: u64,
    pub(in crate::sink) lineno: u32,
    pub(in crate::sink) name: &'a str,
}

/// Body of a `JIT_CODE_UNWINDING_INFO` record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::sink) struct UnwindingInfo {
    /// `.eh_frame`, then `.eh_frame_hdr`. perf reads them in this order; the specification's text swaps them.
    pub(in crate::sink) data: Vec<u8>,
    pub(in crate::sink) eh_frame_hdr_size: u64,
    pub(in crate::sink) mapped_size: u64,
}

/// Buffer of encoded records.
#[derive(Debug, Default)]
pub(super) struct Records {
    bytes: Vec<u8>,
}

impl Records {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Clears the buffer, and frees excess capacity left by an unusually large object.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(1 << 20);
    }

    /// Appends the code and name of one function. perf applies the preceding debug and unwinding records to this
    /// function, because it keeps both until the next `JIT_CODE_LOAD`, regardless of their addresses.
    pub(super) fn push_code_load(&mut self, timestamp: u64, load: &CodeLoad, name: &str, code: &[u8]) {
        debug_assert_eq!(load.code.size(), code.len() as u64);
        let start = self.begin_record(JIT_CODE_LOAD, timestamp);
        let address = load.code.start().0;
        self.bytes.extend_from_slice(&load.pid.to_le_bytes());
        self.bytes.extend_from_slice(&load.tid.to_le_bytes());
        for field in [address, address, load.code.size(), load.code_index] {
            self.bytes.extend_from_slice(&field.to_le_bytes());
        }
        self.push_name(name);
        // perf locates the code by its distance from the end of the record, so there must be no padding.
        self.bytes.extend_from_slice(code);
        self.end_record(start);
    }

    /// Appends the line rows of the function that is loaded next. Appends nothing if `entries` is empty.
    pub(super) fn push_debug_info(&mut self, timestamp: u64, code_addr: u64, entries: &[DebugEntry<'_>]) {
        if entries.is_empty() {
            return;
        }
        let start = self.begin_record(JIT_CODE_DEBUG_INFO, timestamp);
        self.bytes.extend_from_slice(&code_addr.to_le_bytes());
        self.bytes.extend_from_slice(&(entries.len() as u64).to_le_bytes());
        for entry in entries {
            self.bytes.extend_from_slice(&entry.addr.to_le_bytes());
            self.bytes.extend_from_slice(&entry.lineno.to_le_bytes());
            self.bytes.extend_from_slice(&0_u32.to_le_bytes());
            // Write the full name every time, because only perf 6.4 and later support the marker for a repeated name.
            self.push_name(entry.name);
        }
        self.end_record(start);
    }

    /// Appends the unwind tables of the function that is loaded next.
    pub(super) fn push_unwinding_info(&mut self, timestamp: u64, unwinding: &UnwindingInfo) {
        let start = self.begin_record(JIT_CODE_UNWINDING_INFO, timestamp);
        for field in [unwinding.data.len() as u64, unwinding.eh_frame_hdr_size, unwinding.mapped_size] {
            self.bytes.extend_from_slice(&field.to_le_bytes());
        }
        self.bytes.extend_from_slice(&unwinding.data);
        self.end_record(start);
    }

    /// Appends the end marker of the file.
    pub(super) fn push_code_close(&mut self, timestamp: u64) {
        let start = self.begin_record(JIT_CODE_CLOSE, timestamp);
        self.end_record(start);
    }

    /// Appends `struct jr_prefix` and returns its offset. [`Records::end_record`] fills in the size.
    fn begin_record(&mut self, id: u32, timestamp: u64) -> usize {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&id.to_le_bytes());
        self.bytes.extend_from_slice(&0_u32.to_le_bytes());
        self.bytes.extend_from_slice(&timestamp.to_le_bytes());
        start
    }

    fn end_record(&mut self, start: usize) {
        let total_size = (self.bytes.len() - start) as u32;
        self.patch(start + 4, &total_size.to_le_bytes());
    }

    fn patch(&mut self, offset: usize, field: &[u8]) {
        if let Some(bytes) = self.bytes.get_mut(offset..offset + field.len()) {
            bytes.copy_from_slice(field);
        }
    }

    /// Appends a name up to its first NUL, followed by a NUL. Control characters are replaced, because tools print the
    /// name, and because the profiled program also chooses file names.
    fn push_name(&mut self, name: &str) {
        let end = name.find('\0').unwrap_or(name.len());
        let name = &name[..end];
        if name.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            self.bytes.extend_from_slice(name.as_bytes());
        } else {
            self.bytes.extend_from_slice(name.replace(char::is_control, "?").as_bytes());
        }
        self.bytes.push(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Address;

    #[test]
    fn the_header_has_the_forty_bytes_of_the_specification() {
        let header = encode_header(Machine::X86_64, 0x0102_0304, 0x1112_1314_1516_1718);
        let expected = [
            &b"DTiJ"[..],
            &[1, 0, 0, 0, 40, 0, 0, 0, 62, 0, 0, 0, 0, 0, 0, 0, 4, 3, 2, 1],
            &[0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11],
            &[0; 8],
        ];
        assert_eq!(header.to_vec(), expected.concat());
    }

    #[test]
    fn a_load_ends_with_its_code() {
        let mut records = Records::default();
        let code = AddressRange::new(Address(0x1000), 3).unwrap();
        records.push_code_load(7, &CodeLoad { pid: 1, tid: 2, code, code_index: 9 }, "f\0g", &[0xaa, 0xbb, 0xcc]);
        let bytes = records.bytes();
        assert_eq!(bytes.len(), 16 + 8 + 4 * 8 + 2 + 3);
        assert_eq!(bytes[..8], [0, 0, 0, 0, 61, 0, 0, 0]);
        assert_eq!(bytes[56..], [b'f', 0, 0xaa, 0xbb, 0xcc]);
    }

    #[test]
    fn debug_information_without_rows_gives_no_record() {
        let mut records = Records::default();
        records.push_debug_info(7, 0x1000, &[]);
        assert!(records.bytes().is_empty());
        let row = DebugEntry { addr: 0x1000, lineno: 5, name: "/a.py" };
        records.push_debug_info(7, 0x1000, &[row, DebugEntry { addr: 0x1002, ..row }]);
        assert_eq!(records.bytes().len(), 16 + 16 + 2 * (16 + 6));
        assert_eq!(records.bytes()[24..32], 2_u64.to_le_bytes());
    }

    #[test]
    fn no_name_has_control_characters() {
        let mut records = Records::default();
        let row = DebugEntry { addr: 0x1000, lineno: 5, name: "/\x1b[2J\nna\u{ef}ve\u{85}.py\0rest" };
        records.push_debug_info(7, 0x1000, &[row]);
        assert_eq!(&records.bytes()[16 + 16 + 16..], "/?[2J?na\u{ef}ve?.py\0".as_bytes());
    }

    #[test]
    fn unwinding_information_contains_its_sizes() {
        let mut records = Records::default();
        let unwinding = UnwindingInfo { data: vec![1; 24], eh_frame_hdr_size: 20, mapped_size: 32 };
        records.push_unwinding_info(7, &unwinding);
        records.push_code_close(8);
        assert_eq!(records.bytes().len(), 16 + 24 + 24 + 16);
        assert_eq!(records.bytes()[64..72], [3, 0, 0, 0, 16, 0, 0, 0]);
    }
}
