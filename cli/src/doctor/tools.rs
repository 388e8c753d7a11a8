//! For each tool: will it see names, whole stacks, and lines?

#![forbid(unsafe_code)]

use serde::Serialize;

use super::machine::Machine;
use super::program::Program;

/// What one tool shows of compiled code.
#[derive(Debug, Serialize)]
pub(super) struct Tool {
    pub(super) tool: &'static str,
    pub(super) names: bool,
    pub(super) stacks: bool,
    pub(super) lines: bool,
    /// Some code has them.
    #[serde(skip)]
    pub(super) some_lines: bool,
    /// The one thing to do for the first "no".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) todo: Option<String>,
}

/// One reason why something is not seen, and what to do.
type Lack = (bool, &'static str);

const PERF: &str = "let this user use perf, see above";
const LIBRARY: &str = "jitlisten run -- in front of the command, or jitlisten attach";
const STATIC: &str = "build it without -static";
const NAMES: &str = "--sinks perfmap,image,unwind";
const IMAGES: &str = "--sinks perfmap,image,unwind, and a place for images, see above";
const LINES: &str = "lines: jitlisten run without --no-lines (Numba), or compile with debug information";
const SOME: &str = "some code has no lines, see above";
const MODULES: &str = "needs the `modules` sink: --sinks perfmap,image,unwind,modules";
const KEPT: &str = "some code has no frame pointers, see above: --call-graph dwarf";
const UNPADDED: &str = "some code has no frame pointers, see above: jitlisten record";
const PADDING: &str = "perf cannot use the unwind tables of all images here, see above: jitlisten record";
const PYTHON: &str = "this Python has no frame pointers, so the stack ends where it begins: --call-graph dwarf";
const TRACE: &str = "start the program with the tool, or allow ptrace, see above";
const GDB: &str = "gdb 14, or 16 and newer, or its images: docs/gdb.md";

pub(super) fn conclude(machine: &Machine, program: &Program) -> Vec<Tool> {
    let perf: Lack = (machine.perf_may, PERF);
    let here: Lack = (program.has_library, if program.is_static { STATIC } else { LIBRARY });
    let image: Lack = (program.images && machine.images, IMAGES);
    let modules: Lack = (program.modules, MODULES);
    let named: Lack = (image.0 || (program.perf_map && machine.perf_maps), NAMES);
    let lines: Lack = (program.lines, LINES);
    let every: Lack = (!program.lacks_lines, SOME);
    let kept: Lack = (program.code_keeps_frame_pointers, if program.images_have_padding { KEPT } else { UNPADDED });
    let padded: Lack = (program.images_have_padding, PADDING);
    let python: Lack = (program.python_keeps_frame_pointers, PYTHON);
    let trace: Lack = (machine.may_trace || program.is_started_by_tool, TRACE);
    let gdb: Lack = (machine.gdb.is_some_and(|version| version != 15), GDB);
    let recordable: Lack = (program.has_library || program.is_started_by_tool || machine.may_trace, TRACE);
    vec![
        tool("jitlisten record", &[recordable, here], &[], &[lines, every]),
        tool("perf record -g", &[perf, here, named], &[kept, python], &[image, lines, every]),
        tool("perf record --call-graph dwarf", &[perf, here, named], &[image, padded], &[image, lines, every]),
        tool("py-spy --native, pystack", &[trace, here, image], &[], &[lines, every]),
        tool("gdb", &[trace, gdb, here], &[(program.unwind, NAMES)], &[lines, every]),
        tool("bpftrace, other eBPF profilers", &[here, image], &[kept, python], &[lines, every]),
        tool("valgrind --tool=callgrind", &[here, image], &[], &[lines, every]),
        tool("libunwind, backtrace(3)", &[here, image], &[(program.unwind, NAMES)], &[lines, every]),
        tool("memray run --native", &[here, image, modules], &[(program.unwind, NAMES)], &[lines, every]),
        tool("heaptrack", &[here, image, modules], &[(program.unwind, NAMES)], &[lines, every]),
    ]
}

/// Stacks and lines need names first.
fn tool(tool: &'static str, names: &[Lack], stacks: &[Lack], lines: &[Lack]) -> Tool {
    let all = |lacks: &[Lack]| lacks.iter().all(|lack| lack.0);
    let todo = names.iter().chain(stacks).chain(lines).find(|lack| !lack.0).map(|lack| lack.1.to_owned());
    let named = all(names);
    let some_lines = named && lines.iter().all(|lack| lack.0 || lack.1 == SOME);
    Tool { tool, names: named, stacks: named && all(stacks), lines: named && all(lines), some_lines, todo }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_no_has_the_advice() {
        let shown = tool("t", &[(true, "a"), (false, "b")], &[(false, "c")], &[(true, "d")]);
        assert_eq!((shown.names, shown.stacks, shown.lines, shown.todo.as_deref()), (false, false, false, Some("b")));
        let shown = tool("t", &[(true, "a")], &[(false, "c")], &[(true, "d")]);
        assert_eq!((shown.names, shown.stacks, shown.lines, shown.todo.as_deref()), (true, false, true, Some("c")));
        assert_eq!(tool("t", &[(true, "a")], &[], &[]).todo, None);
        let shown = tool("t", &[(true, "a")], &[], &[(true, "b"), (false, SOME)]);
        assert_eq!((shown.lines, shown.some_lines, shown.todo.as_deref()), (false, true, Some(SOME)));
    }
}
