//! Conclusions for each tool: whether it will show names, whole stacks and lines.

use serde::Serialize;

use super::machine::Machine;
use super::program::Program;

/// Facts about compiled code that one tool can show.
#[derive(Debug, Serialize)]
pub(super) struct Tool {
    pub(super) tool: &'static str,
    pub(super) names: bool,
    pub(super) stacks: bool,
    pub(super) lines: bool,
    #[serde(skip)]
    pub(super) some_lines: bool,
    /// Advice on the first fact that the tool cannot show.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) todo: Option<String>,
}

/// Condition for an ability, with advice if the condition is not met.
type Requirement = (bool, &'static str);

const PERF_ADVICE: &str = "let this user use perf, see above";
const LIBRARY_ADVICE: &str = "jitlisten run -- in front of the command, or jitlisten attach";
const UNREPORTED_ADVICE: &str = "no code was reported so far, see above";
const STATIC_ADVICE: &str = "build it without -static";
const NAMES_ADVICE: &str = "--sinks perfmap,image,unwind";
const IMAGES_ADVICE: &str = "--sinks perfmap,image,unwind, and a place for images, see above";
const LINES_ADVICE: &str = "lines: jitlisten run without --no-lines (Numba), or compile with debug information";
const SOME_LINES_ADVICE: &str = "some code has no lines, see above";
const MODULES_ADVICE: &str = "needs the `modules` sink: --sinks perfmap,image,unwind,modules";
const DWARF_ADVICE: &str = "some code has no frame pointers, see above: --call-graph dwarf";
const RECORD_ADVICE: &str = "some code has no frame pointers, see above: jitlisten record";
const PADDING_ADVICE: &str = "perf cannot use the unwind tables of all images here, see above: jitlisten record";
const PYTHON_ADVICE: &str = "this Python has no frame pointers, so the stack ends where it begins: --call-graph dwarf";
const TRACE_ADVICE: &str = "start the program with the tool, or allow ptrace, see above";
const GDB_ADVICE: &str = "gdb 14, or 16 and newer, or its images: docs/gdb.md";

/// Tools that follow frame pointers.
const PERF_FRAME_POINTERS: &str = "perf record -g";
const EBPF: &str = "bpftrace, other eBPF profilers";
const MISSING_CALLER_ADVICE: &str =
    "no line for calls of C code without frame pointers, often libm: perf record --call-graph dwarf";

pub(super) fn conclude(machine: &Machine, program: &Program) -> Vec<Tool> {
    let perf: Requirement = (machine.can_use_perf, PERF_ADVICE);
    let observed: Requirement = match program {
        Program { has_library: true, has_unreported_code, .. } => (!has_unreported_code, UNREPORTED_ADVICE),
        Program { is_static: true, .. } => (false, STATIC_ADVICE),
        _ => (false, LIBRARY_ADVICE),
    };
    let image: Requirement = (program.images && machine.images, IMAGES_ADVICE);
    let modules: Requirement = (program.modules, MODULES_ADVICE);
    let names_available: Requirement = (image.0 || (program.perf_map && machine.perf_maps), NAMES_ADVICE);
    let lines: Requirement = (program.lines, LINES_ADVICE);
    let complete_lines: Requirement = (!program.lacks_lines, SOME_LINES_ADVICE);
    let code_frame_pointers: Requirement =
        (program.code_keeps_frame_pointers, if program.images_have_padding { DWARF_ADVICE } else { RECORD_ADVICE });
    let image_padding: Requirement = (program.images_have_padding, PADDING_ADVICE);
    let python_frame_pointers: Requirement = (program.python_keeps_frame_pointers, PYTHON_ADVICE);
    let tracing: Requirement = (machine.can_trace || program.is_started_by_tool, TRACE_ADVICE);
    let gdb: Requirement = (machine.gdb.is_some_and(|version| version != 15), GDB_ADVICE);
    let can_record: Requirement =
        (program.has_library || program.is_started_by_tool || machine.can_trace, TRACE_ADVICE);
    let mut tools = vec![
        tool("jitlisten record", &[can_record, observed], &[], &[lines, complete_lines]),
        tool(
            PERF_FRAME_POINTERS,
            &[perf, observed, names_available],
            &[code_frame_pointers, python_frame_pointers],
            &[image, lines, complete_lines],
        ),
        tool(
            "perf record --call-graph dwarf",
            &[perf, observed, names_available],
            &[image, image_padding],
            &[image, lines, complete_lines],
        ),
        tool("py-spy --native, pystack", &[tracing, observed, image], &[], &[lines, complete_lines]),
        tool("gdb", &[tracing, gdb, observed], &[(program.unwind, NAMES_ADVICE)], &[lines, complete_lines]),
        tool(EBPF, &[observed, image], &[code_frame_pointers, python_frame_pointers], &[lines, complete_lines]),
        tool("valgrind --tool=callgrind", &[observed, image], &[], &[lines, complete_lines]),
        tool(
            "libunwind, backtrace(3)",
            &[observed, image],
            &[(program.unwind, NAMES_ADVICE)],
            &[lines, complete_lines],
        ),
        tool(
            "memray run --native",
            &[observed, image, modules],
            &[(program.unwind, NAMES_ADVICE)],
            &[lines, complete_lines],
        ),
        tool("heaptrack", &[observed, image, modules], &[(program.unwind, NAMES_ADVICE)], &[lines, complete_lines]),
    ];
    for tool in tools.iter_mut().filter(|tool| [PERF_FRAME_POINTERS, EBPF].contains(&tool.tool) && tool.stacks) {
        tool.todo.get_or_insert_with(|| MISSING_CALLER_ADVICE.to_owned());
    }
    tools
}

/// Evaluates the conditions of a tool. Stacks and lines also require names.
fn tool(tool: &'static str, names: &[Requirement], stacks: &[Requirement], lines: &[Requirement]) -> Tool {
    let all_met = |requirements: &[Requirement]| requirements.iter().all(|requirement| requirement.0);
    let todo = names
        .iter()
        .chain(stacks)
        .chain(lines)
        .find(|requirement| !requirement.0)
        .map(|requirement| requirement.1.to_owned());
    let has_names = all_met(names);
    let some_lines = has_names && lines.iter().all(|requirement| requirement.0 || requirement.1 == SOME_LINES_ADVICE);
    Tool {
        tool,
        names: has_names,
        stacks: has_names && all_met(stacks),
        lines: has_names && all_met(lines),
        some_lines,
        todo,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_no_has_the_advice() {
        let result = tool("t", &[(true, "a"), (false, "b")], &[(false, "c")], &[(true, "d")]);
        assert_eq!(
            (result.names, result.stacks, result.lines, result.todo.as_deref()),
            (false, false, false, Some("b"))
        );
        let result = tool("t", &[(true, "a")], &[(false, "c")], &[(true, "d")]);
        assert_eq!((result.names, result.stacks, result.lines, result.todo.as_deref()), (true, false, true, Some("c")));
        assert_eq!(tool("t", &[(true, "a")], &[], &[]).todo, None);
        let result = tool("t", &[(true, "a")], &[], &[(true, "b"), (false, SOME_LINES_ADVICE)]);
        assert_eq!((result.lines, result.some_lines, result.todo.as_deref()), (false, true, Some(SOME_LINES_ADVICE)));
    }
}
