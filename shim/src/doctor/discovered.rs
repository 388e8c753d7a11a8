//! Descriptions of the observed LLVM instances, for the API.

#![forbid(unsafe_code)]

use std::fmt::Write as _;
use std::path::PathBuf;

use wire::facts::{Missing, ObservedLlvm};

/// An observed LLVM instance.
#[derive(Clone, Debug)]
pub struct DiscoveredLlvm {
    /// Path of the library that contains this LLVM instance; `/proc/self/exe` for the program itself.
    pub path: PathBuf,
    /// True if `__jit_debug_register_code` is hooked, so this LLVM instance notifies us of each object. Otherwise its
    /// GDB JIT list is read whenever it makes memory executable.
    pub detoured: bool,
    /// Number of objects currently in this LLVM instance's GDB JIT list.
    pub objects: usize,
    /// Number of objects that the linkers have reported. JITLink's objects count once they have been found in memory.
    pub linked: u64,
    /// Its entry in the facts for other processes.
    pub facts: ObservedLlvm,
}

impl DiscoveredLlvm {
    /// Returns a JSON object: `{"file": s, "version": s or null, "heard_by": [s], "linked": n, "listed": n, "missing":
    /// [s]}`. Later releases may add members.
    pub fn json(&self) -> String {
        let ObservedLlvm { file, version, channels, missing, .. } = &self.facts;
        let version = version.as_deref().map_or_else(|| "null".to_owned(), quoted);
        let list =
            |words: &mut dyn Iterator<Item = String>| words.map(|word| quoted(&word)).collect::<Vec<_>>().join(", ");
        format!(
            "{{\"file\": {}, \"version\": {version}, \"heard_by\": [{}], \"linked\": {}, \"listed\": {}, \
             \"missing\": [{}]}}",
            quoted(file),
            list(&mut channels.iter().map(|channel| channel.name().to_owned())),
            self.linked,
            self.objects,
            list(&mut missing.iter().map(Missing::to_string)),
        )
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
    use wire::facts::{Channel, Part};

    use super::*;

    #[test]
    fn descriptions_are_valid_json() {
        let facts = ObservedLlvm {
            file: "/a \"b\"\n.so".to_owned(),
            version: Some("14".to_owned()),
            channels: vec![Channel::RuntimeDyld, Channel::ListCall],
            missing: vec![Missing::new(Part::JitLink, "switched off")],
            ..ObservedLlvm::default()
        };
        let llvm = DiscoveredLlvm { path: "/a".into(), detoured: true, objects: 2, linked: 3, facts };
        let members_json = r#""file": "/a \"b\"\u000a.so", "version": "14", "heard_by": ["runtimedyld", "list-call"]"#;
        let expected = format!(r#"{{{members_json}, "linked": 3, "listed": 2, "missing": ["JITLink: switched off"]}}"#);
        assert_eq!(llvm.json(), expected);
    }
}
