//! Second jitdump reader, for comparison, based on the `linux-perf-data` crate that samply uses.

use linux_perf_data::jitdump::{JitDumpReader, JitDumpRecord};

use crate::jitdump_format::{Function, Jitdump};

/// Parses `bytes` with the `linux-perf-data` crate and compares the records with the result of our own reader.
///
/// # Panics
/// If the crate rejects the file or a record differs.
pub(crate) fn assert_agrees(bytes: &[u8], dump: &Jitdump) {
    let mut reader = JitDumpReader::new(std::io::Cursor::new(bytes)).expect("linux-perf-data reads the header");
    let header = reader.header();
    assert_eq!((header.pid, header.elf_machine_arch), (dump.pid, dump.machine));
    let mut functions = dump.functions.iter().peekable();
    let mut is_closed = false;
    while let Some(raw) = reader.next_record().expect("linux-perf-data finds a record") {
        let expected = functions.peek().copied();
        match raw.parse().expect("linux-perf-data parses the record") {
            JitDumpRecord::CodeLoad(load) => {
                let expected = functions.next().expect("as many functions");
                assert_eq!((load.code_addr, load.code_index), (expected.address, expected.index));
                assert_eq!(load.function_name.as_slice().into_owned(), expected.name.as_bytes());
                assert_eq!(load.code_bytes.as_slice().into_owned(), expected.code);
            }
            JitDumpRecord::CodeDebugInfo(lines) => {
                let rows = lines.entries.iter();
                let rows = rows.map(|row| (row.code_addr, row.line, row.file_path.as_slice().into_owned()));
                assert_eq!(rows.collect::<Vec<_>>(), expected_rows(expected.expect("a function follows")));
            }
            JitDumpRecord::CodeUnwindingInfo(unwinding) => {
                // The crate expects the two tables in the order of the specification, perf in the opposite order.
                // Either way, both tables together cover all bytes.
                let tables = expected.and_then(|function| function.unwinding.as_ref()).expect("tables");
                assert!(unwinding.eh_frame.len() >= tables.eh_frame.len().min(unwinding.eh_frame_hdr.len()));
            }
            JitDumpRecord::CodeClose => is_closed = true,
            other => panic!("linux-perf-data finds {other:?}"),
        }
    }
    assert!(functions.next().is_none(), "linux-perf-data finds fewer functions");
    assert_eq!(is_closed, dump.is_closed);
}

fn expected_rows(function: &Function) -> Vec<(u64, u32, Vec<u8>)> {
    function.lines.iter().map(|line| (line.address, line.line, line.file.clone().into_bytes())).collect()
}
