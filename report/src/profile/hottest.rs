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

    /// Returns true if a line has compiled code, judged by the functions that have code there.
    fn is_compiled(&self, line: &Line) -> bool {
        line.functions.iter().any(|row| self.functions[*row as usize].kind != Kind::Python)
    }
}
