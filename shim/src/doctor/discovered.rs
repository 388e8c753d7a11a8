//! Descriptions of the observed LLVM instances, for the API and the doctor.

#![forbid(unsafe_code)]

use std::fmt::Write as _;
use std::path::PathBuf;

/// An observed LLVM instance.
#[derive(Clone, Debug)]
pub struct DiscoveredLlvm {
    /// Path of the library that contains this LLVM instance; `/proc/self/exe` for the program itself.
    pub path: PathBuf,
    /// Start address of the library's mapping.
    pub start: usize,
    /// True if `__jit_debug_register_code` is hooked, so this LLVM instance notifies us of each object. Otherwise its
    /// GDB JIT list is read whenever it makes memory executable.
    pub detoured: bool,
    /// Number of objects currently in this LLVM instance's GDB JIT list.
    pub objects: usize,
    /// LLVM release, as precisely as the library reveals it, such as `14` or `19.1`.
    pub version: Option<String>,
    /// Ways in which this LLVM instance is observed: `runtimedyld` and `jitlink` (hooks of the linkers), `list-call`
    /// (hook of `__jit_debug_register_code`), `list-poll` (the list is read when memory becomes executable).
    pub heard_by: Vec<&'static str>,
    /// Number of objects that the linkers have reported. JITLink's objects count once they have been found in memory.
    pub linked: u64,
    /// Parts that cannot be observed, each with the reason, in one sentence.
    pub missing: Vec<String>,
}

impl DiscoveredLlvm {
    /// Returns a JSON object: `{"file": s, "version": s or null, "heard_by": [s], "linked": n, "listed": n, "missing":
    /// [s]}`. Later releases may add members.
    pub fn json(&self) -> String {
        format!("{{{}}}", self.members())
    }

    /// Returns the same JSON object with the slot and the start address added; `facts.rs` publishes it for other
    /// processes.
    pub(crate) fn json_with_slot(&self, slot: usize) -> String {
        format!("{{\"slot\": {slot}, \"start\": {}, {}}}", self.start, self.members())
    }

    fn members(&self) -> String {
        let version = self.version.as_deref().map_or_else(|| "null".to_owned(), quoted);
        let list = |words: &mut dyn Iterator<Item = &str>| words.map(quoted).collect::<Vec<_>>().join(", ");
        format!(
            "\"file\": {}, \"version\": {version}, \"heard_by\": [{}], \"linked\": {}, \"listed\": {}, \"missing\": \
             [{}]",
            quoted(&self.path.to_string_lossy()),
            list(&mut self.heard_by.iter().copied()),
            self.linked,
            self.objects,
            list(&mut self.missing.iter().map(String::as_str)),
        )
    }
}

/// A detected LLVM instance that is not observed.
#[derive(Clone, Debug)]
pub(crate) struct UnobservedLlvm {
    pub(crate) path: PathBuf,
    /// Start address of the library's mapping.
    pub(crate) start: usize,
    pub(crate) why: String,
}

impl UnobservedLlvm {
    pub(crate) fn json(&self) -> String {
        let (file, why) = (quoted(&self.path.to_string_lossy()), quoted(&self.why));
        format!("{{\"start\": {}, \"file\": {file}, \"why\": {why}}}", self.start)
    }
}

/// Formats `text` as a quoted JSON string.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            letter if letter.is_control() => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(letter));
            }
            letter => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_are_valid_json() {
        let llvm = DiscoveredLlvm {
            path: "/a \"b\"\n.so".into(),
            start: 0x10,
            detoured: true,
            objects: 2,
            version: Some("14".to_owned()),
            heard_by: vec!["runtimedyld", "list-call"],
            linked: 3,
            missing: vec![],
        };
        let members_json = r#""file": "/a \"b\"\u000a.so", "version": "14", "heard_by": ["runtimedyld", "list-call"]"#;
        let expected = format!(r#"{{{members_json}, "linked": 3, "listed": 2, "missing": []}}"#);
        assert_eq!(llvm.json(), expected);
        assert_eq!(llvm.json_with_slot(3), expected.replacen('{', r#"{"slot": 3, "start": 16, "#, 1));
    }
}
