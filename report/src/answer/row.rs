//! Rows of the first screen, as all outputs show them.

use crate::profile::Count;

/// Kind of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RowKind {
    /// Line of the user's Python.
    #[default]
    Python,
    /// Line of compiled code.
    Compiled,
    /// Compilation of a function.
    Compilation,
    /// Function whose lines are too many and too small for rows of their own.
    Function,
    /// Several imports.
    Imports,
}

impl RowKind {
    /// Name in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            RowKind::Python => "python",
            RowKind::Compiled => "compiled",
            RowKind::Compilation => "compilation",
            RowKind::Function => "function",
            RowKind::Imports => "imports",
        }
    }
}

/// Row of the tree of the user's lines.
#[derive(Clone, Debug, Default)]
pub struct AnswerRow {
    /// Number of rows above this one in the tree.
    pub depth: usize,
    /// Kind of the row.
    pub kind: RowKind,
    /// Path of the source.
    pub path: String,
    /// Line; the first one of a function, and the `def` of a function that was compiled.
    pub line: u32,
    /// Last line of a function, and the lines of imports after the first.
    pub more_lines: Vec<u32>,
    /// Merged lines above this one that have nearly the same time, outermost first.
    pub callers: Vec<(String, u32)>,
    /// Function that contains the line, or that was compiled.
    pub function: String,
    /// Source text; empty if it is unknown.
    pub source: String,
    /// Self time of the row plus everything below it.
    pub total: Count,
    /// What the row and everything below it did, longest first.
    pub parts: Vec<(String, Count)>,
    /// C functions that compiled code called, longest first.
    pub calls: Vec<(String, Count)>,
    /// Number of lines below the row that are too small for rows of their own.
    pub hidden_lines: usize,
    /// Number of compilations of the function, or of functions below the line.
    pub compilations: usize,
    /// For a compilation: when it happens again.
    pub again: &'static str,
    /// Advice for a compiled loop, marked by ⚑.
    pub advice: Option<String>,
}

/// One word describes a row if it has this share of its time.
pub(super) const ONE_WORD_PERCENT: f64 = 95.0;
/// Minimum share of a second word, and of a called C function.
pub(super) const MIN_WORD_PERCENT: f64 = 20.0;
pub(super) const MIN_CALL_PERCENT: f64 = 30.0;
/// Minimum number of functions that "compiling 4 functions" counts.
pub(super) const MIN_FUNCTIONS: usize = 4;

impl AnswerRow {
    /// Describes what the row's time is, in at most `columns` if that is possible: one word if it is nearly all, else
    /// the two largest parts with their percentages of the row.
    pub fn of_it(&self, columns: usize) -> String {
        if self.kind == RowKind::Compilation {
            return if self.again.is_empty() { "compiling".to_owned() } else { format!("compiling, {}", self.again) };
        }
        let every: Count = self.parts.iter().map(|(_, count)| count).sum();
        let share = |count: &Count| count.percent_of(every);
        let with_percent = |(word, count): &(String, Count)| {
            let (word, percent) = (self.word(word), format!("{:.0}", share(count)));
            // Without its percentage, a word would seem to be nearly all.
            let room = columns.saturating_sub(percent.len() + 2);
            match word.char_indices().nth(room + 1) {
                Some(_) => format!("{}… {percent}", word.chars().take(room).collect::<String>().trim_end()),
                None => format!("{word} {percent}"),
            }
        };
        if let Some(call) = self.calls.first().filter(|(_, count)| share(count) >= MIN_CALL_PERCENT)
            && matches!(self.kind, RowKind::Compiled | RowKind::Function)
        {
            return with_percent(call);
        }
        let mut parts: Vec<&(String, Count)> = self.parts.iter().filter(|(_, count)| !count.is_zero()).collect();
        parts.truncate(2);
        let words = match parts.as_slice() {
            [] => String::new(),
            [(word, count), ..] if share(count) >= ONE_WORD_PERCENT => self.word(word),
            [first, second] if share(&second.1) >= MIN_WORD_PERCENT => {
                let words = format!("{}, {}", with_percent(first), with_percent(second));
                if words.chars().count() <= columns { words } else { with_percent(first) }
            }
            [first, ..] => with_percent(first),
        };
        match self.hidden_lines {
            0 => words,
            count => {
                let with_lines = format!("{words}, {count} lines");
                if with_lines.chars().count() <= columns { with_lines } else { words }
            }
        }
    }

    fn word(&self, word: &str) -> String {
        match word {
            "compiling" if self.compilations >= MIN_FUNCTIONS => format!("compiling {} functions", self.compilations),
            "garbage collection" => "gc".to_owned(),
            _ => word.strip_prefix("Numba's ").unwrap_or(word).to_owned(),
        }
    }
}
