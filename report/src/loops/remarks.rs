//! LLVM vectoriser remarks about the loops of a function, as stored in the image (`jitlisten/src/remarks.rs`).

use std::collections::BTreeMap;
use std::path::Path;

use super::hot_loop::{Loop, Remark};

/// Remarks by function address, each with the source file name that the compiler uses.
#[derive(Default)]
pub(super) struct Remarks(BTreeMap<u64, Vec<(String, Remark)>>);

/// Maximum number of remarks per function; the rest are ignored.
const MAX_REMARKS_PER_FUNCTION: usize = 64;

impl Remarks {
    pub(super) fn parse(section: &[u8]) -> Remarks {
        let mut remarks = Remarks::default();
        for line in String::from_utf8_lossy(section).lines() {
            let mut fields = line.splitn(5, '\t');
            let mut next = || fields.next().unwrap_or_default();
            let (address, line, file, name, text) = (next(), next(), next(), next(), next());
            let (Ok(address), Ok(line)) = (u64::from_str_radix(address, 16), line.parse()) else { continue };
            let function_remarks = remarks.0.entry(address).or_default();
            if function_remarks.len() < MAX_REMARKS_PER_FUNCTION {
                function_remarks.push((file.to_owned(), Remark { line, name: name.to_owned(), text: text.to_owned() }));
            }
        }
        remarks
    }

    /// Returns the remarks about a loop of the function at `start`. LLVM reports on innermost loops only.
    pub(super) fn for_loop(&self, start: u64, hot_loop: &Loop) -> Vec<Remark> {
        let is_about = |file: &str, line: u32| {
            hot_loop.is_innermost
                && hot_loop.lines.iter().any(|(path, loop_line)| *loop_line == line && Path::new(path).ends_with(file))
        };
        let remarks = self.0.get(&start).into_iter().flatten();
        remarks.filter(|(file, remark)| is_about(file, remark.line)).map(|(_, remark)| remark.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_lines_are_skipped() {
        let remarks = Remarks::parse(b"10\t7\ta.py\tUnsafeDep\tloop not vectorized: x\ty\n\nzz\t1\ta\tb\tc\n10\tx\n20");
        let expected = Remark { line: 7, name: "UnsafeDep".to_owned(), text: "loop not vectorized: x\ty".to_owned() };
        assert_eq!(remarks.0, BTreeMap::from([(16, vec![("a.py".to_owned(), expected)])]));
    }
}
