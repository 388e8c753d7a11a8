//! Text lines for a terminal or a pipe.

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// Minimum width for the optional columns: samples, bars, signatures.
pub(super) const MIN_WIDE_COLUMNS: usize = 110;

/// Maximum width of a name where the line width is unlimited, as in a pipe.
const MAX_NAME_COLUMNS: usize = 100;

/// Output text. Lines are truncated to the width, if there is one.
pub(super) struct Lines {
    text: String,
    width: Option<usize>,
    colour: bool,
}

impl Lines {
    pub(super) fn new(width: Option<usize>, colour: bool) -> Lines {
        Lines { text: String::new(), width, colour }
    }

    /// Returns true if there is room for optional columns.
    pub(super) fn is_wide(&self) -> bool {
        self.columns() >= MIN_WIDE_COLUMNS
    }

    /// Shortens a name, such as that of a function with its argument types, even where the line width is unlimited.
    pub(super) fn shorten(&self, name: &str) -> String {
        if self.width.is_some() { name.to_owned() } else { truncate(name, MAX_NAME_COLUMNS) }
    }

    pub(super) fn columns(&self) -> usize {
        self.width.unwrap_or(usize::MAX)
    }

    pub(super) fn write(&mut self, line: &str) {
        self.write_coloured(line, "");
    }

    pub(super) fn write_coloured(&mut self, line: &str, colour: &str) {
        let line = truncate(line.trim_end(), self.columns());
        self.text.push_str(&match self.colour && !colour.is_empty() {
            true => format!("\x1b[{colour}m{line}\x1b[0m\n"),
            false => line + "\n",
        });
    }

    /// Writes text, wrapped over as many lines as necessary.
    pub(super) fn write_wrapped(&mut self, text: &str, separator: &str, colour: &str) {
        for line in wrap(text, separator, self.columns()) {
            self.write_coloured(&line, colour);
        }
    }

    pub(super) fn into_text(self) -> String {
        self.text
    }
}

/// Splits text into lines of at most `columns`, at the separators between its parts.
pub(super) fn wrap(text: &str, separator: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for part in text.split(separator) {
        match lines.last_mut() {
            Some(line) if line.width().saturating_add(separator.width()).saturating_add(part.width()) <= columns => {
                line.push_str(separator);
                line.push_str(part);
            }
            _ => lines.push(part.to_owned()),
        }
    }
    lines
}

/// Truncates text to a width in columns. Some characters occupy two columns.
pub(super) fn truncate(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    let mut used_columns = 1;
    let fits = |character: &char| {
        used_columns += character.width().unwrap_or_default();
        used_columns <= columns
    };
    text.chars().take_while(fits).chain(['…']).collect()
}

/// Truncates text in the middle, its least informative part.
pub(super) fn truncate_middle(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    let head = truncate(text, (columns / 3).max(1));
    let mut remaining = columns - head.width().min(columns);
    let fits = |character: &char| {
        let width = character.width().unwrap_or_default();
        let fits = width <= remaining;
        remaining = remaining.saturating_sub(width);
        fits
    };
    let tail: Vec<char> = text.chars().rev().take_while(fits).collect();
    head.chars().chain(tail.into_iter().rev()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_characters_count_as_two_columns() {
        assert_eq!(truncate("# 速度を測る", 12), "# 速度を測る");
        assert_eq!(truncate("# 速度を測る", 11), "# 速度を測…");
        assert_eq!(truncate("# 速度を測る", 10), "# 速度を…");
        assert_eq!(truncate("abc", 2), "a…");
    }
}
