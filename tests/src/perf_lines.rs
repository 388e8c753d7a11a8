//! Parser of the source lines that perf prints (`perf annotate -l --stdio`, `perf report --sort sym,srcline`).

use std::collections::BTreeMap;

/// Percentage of samples per line of one file.
pub type LinePercentages = BTreeMap<u32, f64>;

/// Parses the summary that `perf annotate -l --stdio` prints before the instructions:
///
/// ```text
/// Sorted summary for file /tmp/image-1-2/object-1.so
/// ----------------------------------------------
///
///    58.18 two_loops.py:15
/// ```
#[must_use]
pub fn parse_annotate(text: &str, file: &str) -> LinePercentages {
    let summary = text.lines().skip_while(|line| !line.starts_with("Sorted summary")).skip(2);
    summary.take_while(|line| !line.contains("Percent |")).filter_map(|line| parse_row(line, file)).collect()
}

/// Parses the rows of `perf report --sort sym,srcline` and adds up their percentages per line:
/// `    44.80%  [.] __main__.kernel(int64, float64) [v1]  two_loops.py:15`
#[must_use]
pub fn parse_report(text: &str, file: &str) -> LinePercentages {
    let rows = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let (percent, rest) = line.split_once('%')?;
        parse_row(&format!("{percent} {}", rest.split_whitespace().last()?), file)
    });
    rows.fold(LinePercentages::new(), |mut shares, (line, percent)| {
        *shares.entry(line).or_default() += percent;
        shares
    })
}

/// Parses a row such as `58.18 two_loops.py:15`; `None` if it refers to another file than `file`.
fn parse_row(line: &str, file: &str) -> Option<(u32, f64)> {
    let (percent, location) = line.trim().split_once(' ')?;
    let (row_file, number) = location.trim().rsplit_once(':')?;
    (row_file == file).then_some((number.parse().ok()?, percent.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_both() {
        let text = "Sorted summary for file /x.so\n---\n\n   58.18 a.py:15\n   19.78 b.py:15\n Percent | Source\n 1.0 \
            a.py:1\n";
        assert_eq!(parse_annotate(text, "a.py"), LinePercentages::from([(15, 58.18)]));
        let text =
            "# Overhead  Symbol\n\n    44.80%  [.] m.f(int64, float64) [v1]   a.py:15\n     1.20%  [.] g   a.py:15\n";
        assert_eq!(parse_report(text, "a.py"), LinePercentages::from([(15, 46.0)]));
    }
}
