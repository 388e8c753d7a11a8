//! Facts of a recorded Python interpreter, most of which say whose file is whose. `python/jitlisten/_owners.py` writes them into
//! the recording's images directory and documents the fields. The file is untrusted.

use std::io::Read as _;
use std::path::Path;

use jitlisten_files::open_regular;
use serde_json::Value;
use wire::recording::{INTERPRETER, images};

/// Maximum size of the file.
const MAX_FILE_BYTES: u64 = 8 << 20;

/// Facts of one interpreter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interpreter {
    /// Directories and archives of Python's standard library.
    pub library: Vec<String>,
    /// Directories of installed commands.
    pub scripts: Vec<String>,
    /// Directories where everything is installed.
    pub site: Vec<String>,
    /// Other directories, with the modules in them that are installed.
    pub installed: Vec<(String, Vec<String>)>,
    /// Directories of the user's projects that are installed in place.
    pub editable: Vec<String>,
    /// Installed modules of a frozen program.
    pub frozen: Vec<String>,
    /// Modules of Python's standard library in a frozen program.
    pub frozen_library: Vec<String>,
    /// Program that Python read from standard input.
    pub stdin: Option<String>,
    /// Cells of IPython: name of the file that Python uses for each, and its text.
    pub cells: Vec<(String, String)>,
    /// True if `NUMBA_DISABLE_JIT` was set, so that nothing was compiled.
    pub is_jit_disabled: bool,
}

impl Interpreter {
    /// Reads the facts of a recording; `None` if they are missing.
    pub(crate) fn read(recording: &Path) -> Option<Interpreter> {
        let file = open_regular(&images(recording).join(INTERPRETER)).ok()?;
        let mut bytes = Vec::new();
        file.take(MAX_FILE_BYTES).read_to_end(&mut bytes).ok()?;
        Interpreter::parse(&bytes)
    }

    fn parse(bytes: &[u8]) -> Option<Interpreter> {
        let facts: Value = serde_json::from_slice(bytes).ok()?;
        let list = |value: &Value| -> Vec<String> {
            value.as_array().into_iter().flatten().filter_map(|text| Some(text.as_str()?.to_owned())).collect()
        };
        let cells = facts.get("cells").and_then(Value::as_object).into_iter().flatten();
        let installed = facts.get("installed").and_then(Value::as_object).into_iter().flatten();
        Some(Interpreter {
            library: list(&facts["library"]),
            scripts: list(&facts["scripts"]),
            site: list(&facts["site"]),
            installed: installed.map(|(directory, modules)| (directory.clone(), list(modules))).collect(),
            editable: list(&facts["editable"]),
            frozen: list(&facts["frozen"]),
            frozen_library: list(&facts["frozen_library"]),
            stdin: facts["stdin"].as_str().map(str::to_owned),
            cells: cells.filter_map(|(name, text)| Some((name.clone(), text.as_str()?.to_owned()))).collect(),
            is_jit_disabled: facts["jit_disabled"].as_bool().unwrap_or(false),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_facts_are_ignored() {
        assert_eq!(Interpreter::parse(b"{"), None);
        let facts = Interpreter::parse(
            br#"{"site": ["/a", 7], "installed": {"/b": ["c"]}, "library": 3, "cells": {"<a>": "x", "b": 1}}"#,
        );
        let expected = Interpreter {
            site: vec!["/a".to_owned()],
            installed: vec![("/b".to_owned(), vec!["c".to_owned()])],
            cells: vec![("<a>".to_owned(), "x".to_owned())],
            ..Interpreter::default()
        };
        assert_eq!(facts, Some(expected));
    }
}
