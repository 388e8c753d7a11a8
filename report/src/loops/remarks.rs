//! What LLVM's vectoriser said of the loops of a function, as the image carries it (`jitlisten/src/remarks.rs`).

use std::collections::BTreeMap;
use std::path::Path;

use super::found::{Loop, Remark};

/// Remarks by the address of their function, each with the file as the compiler calls it.
#[derive(Default)]
pub(super) struct Remarks(BTreeMap<u64, Vec<(String, Remark)>>);

/// More of a function are not kept.
const MOST: usize = 64;

impl Remarks {
    pub(super) fn parse(section: &[u8]) -> Remarks {
        let mut remarks = Remarks::default();
        for line in String::from_utf8_lossy(section).lines() {
            let mut fields = line.splitn(5, '\t');
            let mut next = || fields.next().unwrap_or_default();
            let (address, line, file, name, text) = (next(), next(), next(), next(), next());
            let (Ok(address), Ok(line)) = (u64::from_str_radix(address, 16), line.parse()) else { continue };
            let of_function = remarks.0.entry(address).or_default();
            if of_function.len() < MOST {
                of_function.push((file.to_owned(), Remark { line, name: name.to_owned(), text: text.to_owned() }));
            }
        }
        remarks
    }

    /// Those of a loop of the function that begins at `start`. LLVM speaks of innermost loops only.
    pub(super) fn of(&self, start: u64, of: &Loop) -> Vec<Remark> {
        let is_of = |file: &str, line: u32| {
            of.is_innermost && of.lines.iter().any(|(path, at)| *at == line && Path::new(path).ends_with(file))
        };
        let here = self.0.get(&start).into_iter().flatten();
        here.filter(|(file, remark)| is_of(file, remark.line)).map(|(_, remark)| remark.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_lines_are_left_out() {
        let remarks = Remarks::parse(b"10\t7\ta.py\tUnsafeDep\tloop not vectorized: x\ty\n\nzz\t1\ta\tb\tc\n10\tx\n20");
        let expected = Remark { line: 7, name: "UnsafeDep".to_owned(), text: "loop not vectorized: x\ty".to_owned() };
        assert_eq!(remarks.0, BTreeMap::from([(16, vec![("a.py".to_owned(), expected)])]));
    }
}
