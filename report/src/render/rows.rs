//! Labels of the first screen's rows, shared by text and page.

use unicode_width::UnicodeWidthStr as _;

use crate::answer::{AnswerRow, RowKind, call_of};
use crate::file_names::FileNames;

/// Row of the tree as it is shown.
pub(super) struct ShownRow {
    /// Branches of the tree.
    pub(super) branches: String,
    /// Position: `prog.py:12`.
    pub(super) label: String,
    /// Source, or the function.
    pub(super) text: String,
}

/// Returns the displayed form of each row.
pub(super) fn shown_rows(rows: &[AnswerRow]) -> Vec<ShownRow> {
    let names = FileNames::new(rows.iter().map(|row| row.path.as_str()));
    let mut parent_paths: Vec<&str> = Vec::new();
    let mut shown = Vec::new();
    for (row, branches) in rows.iter().zip(tree_branches(rows)) {
        parent_paths.truncate(row.depth);
        let label = row_label(row, parent_paths.last().copied(), &names);
        parent_paths.push(&row.path);
        let text = match row.kind {
            RowKind::Compilation if row.compilations > 1 => format!("{} ×{}", call_of(&row.function), row.compilations),
            RowKind::Compilation | RowKind::Function => call_of(&row.function),
            _ if row.source.is_empty() => format!("({})", call_of(&row.function)),
            _ => row.source.clone(),
        };
        shown.push(ShownRow { branches, label, text });
    }
    shown
}

/// Maximum width of a label that names two files.
pub(super) const MAX_LABEL_COLUMNS: usize = 24;

/// Returns the label of a row: `prog.py:12`, `:12` below a row of the same file, `prog.py:2›7` for merged lines,
/// `»b.py:7` if the name of the first file leaves no space for the source.
fn row_label(row: &AnswerRow, parent: Option<&str>, names: &FileNames<'_>) -> String {
    let at = |path: &str, line: u32| match line {
        // The file of a function from the cache may be unknown.
        0 => names.name(path).to_owned(),
        _ => format!("{}:{line}", names.name(path)),
    };
    let is_in_parent_file = parent == Some(&row.path) && row.callers.iter().all(|(path, _)| *path == row.path);
    let location = |path: &str, line: u32| if is_in_parent_file { format!(":{line}") } else { at(path, line) };
    match (row.kind, row.callers.first()) {
        (RowKind::Function, _) => {
            let last = row.more_lines.first().copied().unwrap_or(row.line);
            format!("{}-{last}", location(&row.path, row.line))
        }
        (RowKind::Imports, _) => {
            let more: Vec<String> = row.more_lines.iter().map(u32::to_string).collect();
            [vec![at(&row.path, row.line)], more].concat().join(",")
        }
        (RowKind::Compilation, _) => at(&row.path, row.line),
        (_, None) => location(&row.path, row.line),
        // A lambda on its caller's line.
        (_, Some((path, line))) if (path, line) == (&row.path, &row.line) => location(path, *line),
        (_, Some((path, line))) => {
            let separator = if row.callers.len() == 1 { '›' } else { '»' };
            let is_one_file = row.callers.iter().all(|(path, _)| *path == row.path);
            let innermost = if is_one_file { row.line.to_string() } else { at(&row.path, row.line) };
            let label = format!("{}{separator}{innermost}", location(path, *line));
            if is_one_file || label.width() <= MAX_LABEL_COLUMNS { label } else { format!("»{innermost}") }
        }
    }
}

/// Returns the branches of the tree before each row.
fn tree_branches(rows: &[AnswerRow]) -> Vec<String> {
    let is_last = |index: usize| {
        let depth = rows[index].depth;
        rows[index + 1..].iter().take_while(|row| row.depth >= depth).all(|row| row.depth != depth)
    };
    // Whether the row at each depth above the current one is the last of its siblings.
    let mut lasts: Vec<bool> = Vec::new();
    let mut prefixes = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        lasts.truncate(row.depth);
        let above: String = lasts.iter().skip(1).map(|last| if *last { "  " } else { "│ " }).collect();
        let own = match (row.depth, is_last(index)) {
            (0, _) => "",
            (_, true) => "└ ",
            (_, false) => "├ ",
        };
        prefixes.push(above + own);
        lasts.push(is_last(index));
    }
    prefixes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_label_names_only_the_innermost_file() {
        let names = FileNames::new(["window/numba_.py", "prog.py"].into_iter());
        let label = |caller: &str| {
            let row = AnswerRow {
                kind: RowKind::Python,
                path: "/a/prog.py".to_owned(),
                line: 22,
                callers: vec![(caller.to_owned(), 70)],
                ..AnswerRow::default()
            };
            row_label(&row, None, &names)
        };
        assert_eq!(label("/a/b.py"), "b.py:70›prog.py:22");
        assert_eq!(label("/a/prog.py"), "prog.py:70›22");
        assert_eq!(label("/a/extensions.py"), "»prog.py:22");
        let lambda = AnswerRow {
            kind: RowKind::Python,
            path: "/a/prog.py".to_owned(),
            line: 22,
            callers: vec![("/a/prog.py".to_owned(), 22)],
            ..AnswerRow::default()
        };
        assert_eq!(row_label(&lambda, None, &names), "prog.py:22");
        let unknown = AnswerRow { kind: RowKind::Compilation, ..AnswerRow::default() };
        assert_eq!(row_label(&unknown, None, &names), "", "a function from the cache of an unknown file");
    }
}
