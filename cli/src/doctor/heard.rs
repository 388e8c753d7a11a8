//! Findings about each LLVM instance, from the events in the library's log. They include instances whose GDB JIT list
//! is missing or empty.

use jitlisten::plumbing::LogEvent;

use super::Finding;
use super::llvm::NAMES_ADVICE;

/// Returns a finding for each LLVM instance in the log (`JITLISTEN_LOG=info:FILE`), observed or not. Skips
/// `known_libraries`, because the library's facts already provide findings for these.
pub(super) fn findings(events: &[LogEvent], known_libraries: &[String]) -> Vec<Finding> {
    let is_known = |library: &str| known_libraries.iter().any(|known| known == library);
    let finding = |event: &LogEvent| match event {
        LogEvent::Observed { library, .. } if !is_known(library) => Some(observed_finding(events, library)),
        LogEvent::Unobserved { library, .. } | LogEvent::OnlyListed { library, .. } if is_known(library) => None,
        LogEvent::Unobserved { .. } | LogEvent::OnlyListed { .. } | LogEvent::Silent { .. } => {
            Some(Finding::no("LLVM", event.to_string(), NAMES_ADVICE))
        }
        _ => None,
    };
    events.iter().filter_map(finding).collect()
}

/// Reports a linker as hooked unless an event gives a reason why it is not. A linker that the LLVM library does not
/// contain is omitted.
fn observed_finding(events: &[LogEvent], observed_library: &str) -> Finding {
    let mut descriptions = Vec::new();
    for name in ["RuntimeDyld", "JITLink"] {
        let refusal = events.iter().find(|event| {
            matches!(event, LogEvent::LinkerAbsent { library, linker, .. }
                | LogEvent::LinkerUnobserved { library, linker, .. } if *library == observed_library && *linker == name)
        });
        match refusal {
            Some(LogEvent::LinkerAbsent { .. }) => {}
            Some(LogEvent::LinkerUnobserved { reason, .. }) => {
                descriptions.push(format!("{name} is not observed: {reason}"));
            }
            _ => descriptions.push(format!("{name} is hooked")),
        }
    }
    if descriptions.is_empty() {
        descriptions.push("observed by its GDB JIT list".to_owned());
    }
    let library = if observed_library == "/proc/self/exe" { "the program" } else { observed_library };
    Finding::ok("LLVM", format!("{library}: {}", descriptions.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;

    #[test]
    fn an_llvm_without_a_list_is_known_by_the_log() {
        let (jaxlib, program, odd) = ("/lib/jaxlib.so", "/proc/self/exe", "/lib/odd.so");
        let reason = "too many LLVMs in this process (limit 16); its code stays unnamed";
        let events = [
            LogEvent::Observed { library: jaxlib, slot: "0" },
            LogEvent::LinkerAbsent { library: jaxlib, linker: "JITLink", class: "ObjectLinkingLayer" },
            LogEvent::Observed { library: program, slot: "1" },
            LogEvent::LinkerUnobserved { library: program, linker: "RuntimeDyld", reason: "switched off" },
            LogEvent::Unobserved { library: odd, reason },
        ];
        let all_findings = findings(&events, &[]);
        let texts: Vec<&str> = all_findings.iter().map(|finding| finding.found.as_str()).collect();
        assert_eq!(
            texts,
            [
                "/lib/jaxlib.so: RuntimeDyld is hooked",
                "the program: RuntimeDyld is not observed: switched off; JITLink is hooked",
                "/lib/odd.so: this LLVM is not observed: too many LLVMs in this process (limit 16); its code stays \
                 unnamed",
            ]
        );
        assert_eq!(all_findings[2].state, State::No);
        for known in [jaxlib, odd] {
            assert_eq!(findings(&events, &[known.to_owned()]).len(), 2, "what the process shows is not said twice");
        }
    }
}
