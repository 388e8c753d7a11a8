//! The hottest lines of the whole program.

use crate::profile::{Count, Place, Profile};
use crate::report::Report;
use crate::symbols::Kind;

/// A line of the whole program.
#[derive(Clone, Copy, Debug)]
pub struct HotLine {
    /// File, as an index into [`Profile::files`], and line.
    pub place: Place,
    /// What it took itself, with the C functions that it called, and what Numba compiles in for it.
    pub own: Count,
    /// With everything that it called.
    pub total: Count,
    /// What of [`own`](HotLine::own) was C.
    pub in_c: Count,
    /// Whether it was compiled, and not interpreted.
    pub compiled: bool,
}

/// A line of the user's, and what it called.
#[derive(Clone, Copy, Debug)]
pub struct CallingLine {
    /// File, as an index into [`Profile::files`], and line.
    pub place: Place,
    /// Everything below it that is in no other line of the user's.
    pub below: Count,
    /// What of this was compiling.
    pub compiling: Count,
}

/// Lines of which less is no news, in percent of everything.
const LEAST_BELOW: f64 = 2.0;

/// The hottest lines: of the user's files, and of compiled code in any file. What libraries interpret is in none of
/// them.
pub fn hottest(report: &Report, most: usize) -> Vec<HotLine> {
    let profile = &report.profile;
    let mut hot = Vec::new();
    for (file, lines) in profile.files.iter().enumerate() {
        for (number, line) in &lines.lines {
            let compiled = is_compiled(profile, &line.functions);
            if !compiled && !report.is_users(&lines.path) && line.generated_by.is_none() {
                continue;
            }
            let own = line.hot;
            if own.weight != 0 {
                let place = (file as u32, *number);
                hot.push(HotLine { place, own, total: line.shares.total.max(own), in_c: line.in_c, compiled });
            }
        }
    }
    hot.sort_by(|a, b| b.own.cmp(&a.own).then(a.place.cmp(&b.place)));
    hot.truncate(most);
    hot
}

/// The lines of the user's that called what took its time elsewhere: in libraries, in their compiled code, or
/// compiling.
pub fn calling(report: &Report, most: usize) -> Vec<CallingLine> {
    let profile = &report.profile;
    let mut calling = Vec::new();
    for (file, lines) in profile.files.iter().enumerate().filter(|(_, lines)| report.is_users(&lines.path)) {
        for (number, line) in &lines.lines {
            let elsewhere = line.below.weight.saturating_sub(line.hot.weight);
            if elsewhere as f64 * 100.0 >= LEAST_BELOW * profile.all.weight as f64 && elsewhere != 0 {
                calling.push(CallingLine {
                    place: (file as u32, *number),
                    below: line.below,
                    compiling: line.below_compiling,
                });
            }
        }
    }
    calling.sort_by(|a, b| b.below.cmp(&a.below).then(a.place.cmp(&b.place)));
    calling.truncate(most);
    calling
}

/// Whether the compiler made code of a line, by the functions that have code there.
fn is_compiled(profile: &Profile, functions: &[u32]) -> bool {
    functions.iter().any(|row| profile.functions[*row as usize].kind != Kind::Python)
}
