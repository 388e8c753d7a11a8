//! Hottest lines of the whole program.

use super::{Count, Line, Profile, SourcePosition};
use crate::symbols::Kind;

/// Source line with the time charged to it.
#[derive(Clone, Copy, Debug)]
pub struct HotLine {
    /// File, as an index into [`Profile::files`], and line.
    pub position: SourcePosition,
    /// Self time, including called C functions and Numba's own code for calls such as `a.sum()`.
    pub self_count: Count,
    /// Self time plus the time in everything that the line calls.
    pub total: Count,
    /// Part of [`self_count`](HotLine::self_count) that was in C functions.
    pub in_c: Count,
    /// True if the line was compiled, not interpreted.
    pub compiled: bool,
}

/// User line that spends its time in callees.
#[derive(Clone, Copy, Debug)]
pub struct CallingLine {
    /// File, as an index into [`Profile::files`], and line.
    pub position: SourcePosition,
    /// Time of the samples whose innermost user line is this one.
    pub below: Count,
    /// Part of `below` that was spent compiling.
    pub compiling: Count,
}

/// Minimum time in callees, in percent of the total.
const MIN_BELOW_PERCENT: f64 = 2.0;

impl Profile {
    /// Returns the hottest lines of the user's files, and of compiled code in any file. Interpreted lines of libraries
    /// are excluded.
    pub fn hottest(&self, max_rows: usize) -> Vec<HotLine> {
        let mut hot = Vec::new();
        for (file, lines) in self.files.iter().enumerate() {
            for (number, line) in &lines.lines {
                let compiled = self.is_compiled(line);
                if !compiled && !self.activities.owners().is_user_source(&lines.path) && line.generated_by.is_none() {
                    continue;
                }
                let self_count = line.hot;
                if self_count.weight != 0 {
                    let position = (file as u32, *number);
                    hot.push(HotLine {
                        position,
                        self_count,
                        total: line.shares.total.max(self_count),
                        in_c: line.in_c,
                        compiled,
                    });
                }
            }
        }
        hot.sort_by(|a, b| b.self_count.cmp(&a.self_count).then(a.position.cmp(&b.position)));
        hot.truncate(max_rows);
        hot
    }

    /// Returns the user's lines whose callees took most of the time: libraries, compiled code in libraries, or the
    /// compiler.
    pub fn calling_lines(&self, max_rows: usize) -> Vec<CallingLine> {
        let mut calling = Vec::new();
        for (file, lines) in
            self.files.iter().enumerate().filter(|(_, lines)| self.activities.owners().is_user_source(&lines.path))
        {
            for (number, line) in &lines.lines {
                let below_ns = line.below.weight.saturating_sub(line.hot.weight);
                if below_ns as f64 * 100.0 >= MIN_BELOW_PERCENT * self.all.weight as f64 && below_ns != 0 {
                    calling.push(CallingLine {
                        position: (file as u32, *number),
                        below: line.below,
                        compiling: line.below_compiling,
                    });
                }
            }
        }
        calling.sort_by(|a, b| b.below.cmp(&a.below).then(a.position.cmp(&b.position)));
        calling.truncate(max_rows);
        calling
    }

    /// Returns true if a line has compiled code, judged by the functions that have code there.
    fn is_compiled(&self, line: &Line) -> bool {
        line.functions.iter().any(|row| self.functions[*row as usize].kind != Kind::Python)
    }
}
