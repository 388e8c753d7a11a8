//! Formatting of durations, counts and names, shared by all outputs.

use rustc_hash::FxHashMap;

/// Formats a time in seconds with one digit, or in ms below a second.
pub(crate) fn duration(nanoseconds: u64) -> String {
    let seconds = nanoseconds as f64 / 1e9;
    if seconds < 1.0 { format!("{:.0} ms", seconds * 1e3) } else { format!("{seconds:.1} s") }
}

/// Formats a time in seconds with two digits, or in ms below a second.
pub(crate) fn precise_duration(nanoseconds: u64) -> String {
    match nanoseconds {
        0..1_000_000_000 => duration(nanoseconds),
        _ => format!("{:.2} s", nanoseconds as f64 / 1e9),
    }
}

/// Formats a count with its noun: `1 thread`, `2 threads`.
pub(crate) fn plural(number: usize, noun: &str) -> String {
    format!("{} {noun}{}", group_digits(number as u64), if number == 1 { "" } else { "s" })
}

/// Beginning of the names of IPython's cells.
pub(crate) const CELL: &str = "ipython-input-";

/// Returns the last component of a path; `ipython-input-3` for a cell of IPython.
pub(crate) fn file_name(path: &str) -> &str {
    let name = path.rsplit('/').next().unwrap_or(path);
    cell_name(name).unwrap_or(name)
}

/// Returns the name of an IPython cell without its hash: of `<ipython-input-3-5cd641b23216>`, and of the file that
/// its text was saved in.
fn cell_name(name: &str) -> Option<&str> {
    let name = name.strip_prefix('<').unwrap_or(name);
    let number = name.strip_prefix(CELL)?;
    let (digits, rest) = number.split_once('-')?;
    digits.bytes().all(|digit| digit.is_ascii_digit()).then(|| &name[..name.len() - rest.len() - 1])
}

/// Returns true for the program perf, which distributions install as `perf_6.1`, too.
pub(crate) fn is_perf(program: &str) -> bool {
    let version = file_name(program).strip_prefix("perf");
    version.is_some_and(|version| {
        version.is_empty()
            || version.strip_prefix('_').is_some_and(|version| version.starts_with(|c: char| c.is_ascii_digit()))
    })
}

/// Returns the file name of a source. An `__init__.py` is shown with its package, because every package has one.
pub(crate) fn source_name(path: &str) -> &str {
    let package = path.strip_suffix("/__init__.py").and_then(|package| package.rsplit('/').next());
    package.map_or_else(|| file_name(path), |package| &path[path.len() - package.len() - "/__init__.py".len()..])
}

/// Separates groups of three digits: `1,234,567` for 1234567.
pub(crate) fn group_digits(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped_digits = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index != 0 && (digits.len() - index).is_multiple_of(3) {
            grouped_digits.push(',');
        }
        grouped_digits.push(digit);
    }
    grouped_digits
}

/// Returns the name of a Python function with its file name.
pub(crate) fn python_name(function: &str, path: &str) -> String {
    format!("{function} ({})", source_name(path))
}

/// Returns each note once. A note that differs only in numbers from an earlier one is counted with that.
pub(crate) fn count_notes(notes: Vec<String>) -> Vec<String> {
    let mut groups: FxHashMap<String, usize> = FxHashMap::default();
    let mut counted: Vec<(String, usize, bool)> = Vec::new();
    for note in notes {
        let pattern: String = note.chars().filter(|letter| !letter.is_ascii_digit()).collect();
        let index = *groups.entry(pattern).or_insert(counted.len());
        match counted.get_mut(index) {
            Some((first, count, differs)) => {
                *count += 1;
                *differs |= *first != note;
            }
            None => counted.push((note, 1, false)),
        }
    }
    let text = |(note, count, differs)| match (count, differs) {
        (1, _) => note,
        (count, false) => format!("{note} ({count} times)"),
        (count, true) => format!("{note} (and {} similar notes)", count - 1),
    };
    counted.into_iter().map(text).collect()
}
