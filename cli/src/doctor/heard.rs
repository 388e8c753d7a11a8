//! Findings about each LLVM instance, from the library's log. They include instances whose GDB JIT list is missing or
//! empty.

#![forbid(unsafe_code)]

use super::Finding;
use super::llvm::NAMES_ADVICE;

const ATTACHED_MARKER: &str = ": LLVM in ";
const LINKER_MARKERS: [(&str, &str); 2] =
    [("RuntimeDyld", ": RuntimeDyld is not observed: "), ("JITLink", ": JITLink is not observed: ")];
/// Substrings of warnings about code that gets no names.
const UNOBSERVED_WARNINGS: [&str; 3] = [
    ": this LLVM is not observed: ",
    ": only the GDB JIT list of this LLVM can be read: ",
    ": this LLVM reported no object, ",
];

/// Returns a finding for each LLVM instance in the log (`JITLISTEN_LOG=info:FILE`), observed or not. Skips
/// `known_libraries`, because the library's facts already provide findings for these.
pub(super) fn findings(log: &str, known_libraries: &[String]) -> Vec<Finding> {
    let mut all_findings = Vec::new();
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once(ATTACHED_MARKER) {
            let library = rest.rsplit_once(", slot ").map_or(rest, |(library, _)| library);
            if !known_libraries.iter().any(|known| known == library) {
                all_findings.push(attached_finding(log, library));
            }
        } else if UNOBSERVED_WARNINGS.iter().any(|warning| line.contains(warning)) {
            let is_known = |library: &String| {
                UNOBSERVED_WARNINGS[..2].iter().any(|warning| line.contains(&format!(" warn: {library}{warning}")))
            };
            if known_libraries.iter().any(is_known) {
                continue;
            }
            all_findings.push(Finding::no("LLVM", strip_log_prefix(line), NAMES_ADVICE));
        }
    }
    all_findings
}

/// Reports a linker as hooked unless the log gives a reason why it is not. A linker that the LLVM library does not
/// contain is omitted.
fn attached_finding(log: &str, library: &str) -> Finding {
    let mut descriptions = Vec::new();
    for (linker, marker) in LINKER_MARKERS {
        let marker = format!("{library}{marker}");
        match log.lines().find_map(|line| line.split_once(&marker)) {
            None => descriptions.push(format!("{linker} is hooked")),
            Some((_, reason)) if reason.starts_with("no vtable of ") => {}
            Some((_, reason)) => descriptions.push(format!("{linker} is not observed: {reason}")),
        }
    }
    if descriptions.is_empty() {
        descriptions.push("observed by its GDB JIT list".to_owned());
    }
    let library = if library == "/proc/self/exe" { "the program" } else { library };
    Finding::ok("LLVM", format!("{library}: {}", descriptions.join("; ")))
}

/// Removes the prefix of a log line, up to the level.
fn strip_log_prefix(line: &str) -> &str {
    line.find(" warn: ").map_or(line, |offset| &line[offset + " warn: ".len()..])
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
        let findings_in_log = findings(log, &[]);
        let texts: Vec<&str> = findings_in_log.iter().map(|finding| finding.found.as_str()).collect();
        assert_eq!(
            texts,
            [
                "/lib/jaxlib.so: RuntimeDyld is hooked",
                "the program: RuntimeDyld is not observed: switched off; JITLink is hooked",
                "/lib/odd.so: this LLVM is not observed: too many LLVMs in this process (limit 16); its code stays \
                 unnamed",
            ]
        );
        assert_eq!(findings_in_log[2].state, State::No);
        let known_libraries = ["/lib/jaxlib.so".to_owned()];
        assert_eq!(
            findings(log, &known_libraries).len(),
            findings_in_log.len() - 1,
            "what the process shows is not said twice"
        );
        assert_eq!(findings(log, &["/lib/odd.so".to_owned()]).len(), findings_in_log.len() - 1);
        assert!(findings("jitlisten[7] info: could not hook _r_debug.r_brk\n", &[]).is_empty());
    }
}
