//! How each LLVM is heard, from the library's log: also those that have no list for debuggers, or that put nothing into it.

#![forbid(unsafe_code)]

use super::Finding;

const ATTACHED: &str = ": LLVM in ";
const LINKERS: [(&str, &str); 2] =
    [("RuntimeDyld", ": its linker is not listened to: "), ("JITLink", ": JITLink is not listened to: ")];
/// Warnings that say that code has no names.
const UNHEARD: [&str; 3] = [
    ": an LLVM that is not listened to: ",
    ": an LLVM that is heard by its list for debuggers only: ",
    ": nothing was heard of this LLVM, ",
];

/// A finding for each LLVM that the log (`JITLISTEN_LOG=info:FILE`) names, and for each that is not heard. Those that are `shown` have
/// one already, by what the library shows of them.
pub(super) fn findings(log: &str, shown: &[String]) -> Vec<Finding> {
    let mut found = Vec::new();
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once(ATTACHED) {
            let library = rest.rsplit_once(", slot ").map_or(rest, |(library, _)| library);
            if !shown.iter().any(|shown| shown == library) {
                found.push(attached(log, library));
            }
        } else if UNHEARD.iter().any(|warning| line.contains(warning)) {
            let is_shown = |shown: &String| line.contains(&format!(" warn: {shown}{}", UNHEARD[0]));
            if shown.iter().any(is_shown) {
                continue;
            }
            found.push(Finding::no("LLVM", from_path(line), "see docs/limits.md: code of this LLVM has no names"));
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
            None => words.push(format!("{linker} calls for each object")),
            Some((_, reason)) if reason.starts_with("no vtable of ") => {}
            Some((_, reason)) => words.push(format!("{linker} is not listened to: {reason}")),
        }
    }
    if words.is_empty() {
        words.push("heard by its list for debuggers".to_owned());
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
            jitlisten[7] info: /lib/jaxlib.so: JITLink is not listened to: no vtable of ObjectLinkingLayer\n\
            jitlisten[7] info: LLVM in /proc/self/exe, slot 1\n\
            jitlisten[7] info: /proc/self/exe: its linker is not listened to: switched off\n\
            jitlisten[7] warn: /lib/odd.so: an LLVM that is not listened to: 16 others are; what it compiles has no names\n";
        let found = findings(log, &[]);
        let said: Vec<&str> = found.iter().map(|finding| finding.found.as_str()).collect();
        assert_eq!(
            said,
            [
                "/lib/jaxlib.so: RuntimeDyld calls for each object",
                "the program: RuntimeDyld is not listened to: switched off; JITLink calls for each object",
                "/lib/odd.so: an LLVM that is not listened to: 16 others are; what it compiles has no names",
            ]
        );
        assert_eq!(found[2].state, State::No);
        let shown = ["/lib/jaxlib.so".to_owned()];
        assert_eq!(findings(log, &shown).len(), found.len() - 1, "what the process shows is not said twice");
        assert_eq!(findings(log, &["/lib/odd.so".to_owned()]).len(), found.len() - 1);
        assert!(findings("jitlisten[7] info: the loader's rendezvous stays as it is\n", &[]).is_empty());
    }
}
