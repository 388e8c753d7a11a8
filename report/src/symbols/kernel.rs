//! Names of the kernel's functions, from `/proc/kallsyms`: of this kernel, so only for its own recordings.

use std::fs;

/// Functions of the kernel that runs here.
#[derive(Debug, Default)]
pub(super) struct KernelSymbols {
    entries: Vec<(u64, String)>,
}

impl KernelSymbols {
    /// Empty where the recording is of another kernel or machine, or where addresses are hidden.
    pub(super) fn of(release: &str, is_here: bool) -> KernelSymbols {
        let running = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        if !is_here || release.is_empty() || running.trim() != release {
            return KernelSymbols::default();
        }
        let text = fs::read_to_string("/proc/kallsyms").unwrap_or_default();
        let mut entries: Vec<(u64, String)> = text.lines().filter_map(entry).collect();
        entries.sort();
        KernelSymbols { entries }
    }

    pub(super) fn find(&self, address: u64) -> Option<&str> {
        let after = self.entries.partition_point(|(start, _)| *start <= address);
        self.entries.get(after.checked_sub(1)?).map(|(_, name)| name.as_str())
    }
}

fn entry(line: &str) -> Option<(u64, String)> {
    let mut words = line.split_whitespace();
    let address = u64::from_str_radix(words.next()?, 16).ok()?;
    let kind = words.next()?;
    (address != 0 && kind.eq_ignore_ascii_case("t")).then_some((address, words.next()?.to_owned()))
}
