//! Names of kernel functions from `/proc/kallsyms`. The file describes the running kernel, so it is used only for
//! recordings of this kernel.

use std::fs;

/// Functions of the running kernel.
#[derive(Debug, Default)]
pub(super) struct KernelSymbols {
    entries: Vec<(u64, String)>,
}

impl KernelSymbols {
    /// Loads the names. Empty if the recording comes from another kernel or machine, or if addresses are hidden.
    pub(super) fn load(release: &str, is_local: bool) -> KernelSymbols {
        let running = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        if !is_local || release.is_empty() || running.trim() != release {
            return KernelSymbols::default();
        }
        let text = fs::read_to_string("/proc/kallsyms").unwrap_or_default();
        let mut entries: Vec<(u64, String)> = text.lines().filter_map(parse_entry).collect();
        entries.sort();
        KernelSymbols { entries }
    }

    pub(super) fn find(&self, address: u64) -> Option<&str> {
        let next_index = self.entries.partition_point(|(start, _)| *start <= address);
        self.entries.get(next_index.checked_sub(1)?).map(|(_, name)| name.as_str())
    }
}

fn parse_entry(line: &str) -> Option<(u64, String)> {
    let mut words = line.split_whitespace();
    let address = u64::from_str_radix(words.next()?, 16).ok()?;
    let kind = words.next()?;
    (address != 0 && kind.eq_ignore_ascii_case("t")).then_some((address, words.next()?.to_owned()))
}
