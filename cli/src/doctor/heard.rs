//! Findings about each LLVM from the library's log, including LLVMs without a GDB JIT list or with an empty one.

#![forbid(unsafe_code)]

use super::Finding;
use super::llvm::NO_NAMES;

const ATTACHED: &str = ": LLVM in ";
const LINKERS: [(&str, &str); 2] =
    [("RuntimeDyld", ": RuntimeDyld is not observed: "), ("JITLink", ": JITLink is not observed: ")];
/// Warnings that say that code has no names.
const UNHEARD: [&str; 3] = [
    ": this LLVM is not observed: ",
    ": only the GDB JIT list of this LLVM can be read: ",
    ": this LLVM reported no object, ",
];

/// A finding for each LLVM that the log (`JITLISTEN_LOG=info:FILE`) names, and for each that is not observed. Those
/// that are `shown` have one already, by what the library shows of them.
pub(super) fn findings(log: &str, shown: &[String]) -> Vec<Finding> {
    let mut found = Vec::new();
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once(ATTACHED) {
            let library = rest.rsplit_once(", slot ").map_or(rest, |(library, _)| library);
            if !shown.iter().any(|shown| shown == library) {
                found.push(attached(log, library));
            }
        } else if UNHEARD.iter().any(|warning| line.contains(warning)) {
            let is_shown =
                |shown: &String| UNHEARD[..2].iter().any(|why| line.contains(&format!(" warn: {shown}{why}")));
            if shown.iter().any(is_shown) {
                continue;
            }
            found.push(Finding::no("LLVM", from_path(line), NO_NAMES));
        }
    }
    found
}

/// A linker calls us unless the log says why not. One that is not in the library is not worth a word.
fn attached(log: &str, library: &str) -> Finding {
    let mut words = Vec::new();
    for (linker, refused) in LINKERS {
        let refused = format!("{library}{refused}");
        match log.lines().find_map(|line| line.split_once(&refused)) {
            None => words.push(format!("{linker} is hooked")),
            Some((_, reason)) if reason.starts_with("no vtable of ") => {}
            Some((_, reason)) => words.push(format!("{linker} is not observed: {reason}")),
        }
    }
    if words.is_empty() {
        words.push("observed by its GDB JIT list".to_owned());
    }
    let library = if library == "/proc/self/exe" { "the program" } else { library };
    Finding::ok("LLVM", format!("{library}: {}", words.join("; ")))
}

/// The line without what the log puts in front.
fn from_path(line: &str) -> &str {
    line.find(" warn: ").map_or(line, |at| &line[at + " warn: ".len()..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;

    #[test]
    fn an_llvm_without_a_list_is_known_by_the_log() {
        let log = "jitlisten[7] info: LLVM in /lib/jaxlib.so, slot 0\n\
            jitlisten[7] info: /lib/jaxlib.so: JITLink is not observed: no vtable of ObjectLinkingLayer\n\
            jitlisten[7] info: LLVM in /proc/self/exe, slot 1\n\
            jitlisten[7] info: /proc/self/exe: RuntimeDyld is not observed: switched off\n\
            jitlisten[7] warn: /lib/odd.so: this LLVM is not observed: too many LLVMs in this process (limit 16); its \
            code stays unnamed\n";
        let found = findings(log, &[]);
        let said: Vec<&str> = found.iter().map(|finding| finding.found.as_str()).collect();
        assert_eq!(
            said,
            [
                "/lib/jaxlib.so: RuntimeDyld is hooked",
                "the program: RuntimeDyld is not observed: switched off; JITLink is hooked",
                "/lib/odd.so: this LLVM is not observed: too many LLVMs in this process (limit 16); its code stays \
                 unnamed",
            ]
        );
        assert_eq!(found[2].state, State::No);
        let shown = ["/lib/jaxlib.so".to_owned()];
        assert_eq!(findings(log, &shown).len(), found.len() - 1, "what the process shows is not said twice");
        assert_eq!(findings(log, &["/lib/odd.so".to_owned()]).len(), found.len() - 1);
        assert!(findings("jitlisten[7] info: could not hook _r_debug.r_brk\n", &[]).is_empty());
    }
}
