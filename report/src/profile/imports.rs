//! Names of imported packages.
//!
//! The stack of an import does not contain the module until its code runs. Until then, the user's line that imports
//! names it: `from heavy.table import row`. A line that computes the name, as with `importlib.import_module`, is named
//! after the first module whose code ran below it.

use std::path::{Path, PathBuf};

use rustc_hash::FxHashMap;

use super::owners::{Owners, STANDARD_LIBRARY};
use crate::lookup::source::{Compiled, SourceText};
use crate::recording::Recording;
use crate::symbols::{Kind, Symbols};

/// Line that imports: source index and line number.
type LineKey = (u32, u32);

/// Modules of Python's standard library, of all supported releases.
#[rustfmt::skip]
const STANDARD_MODULES: [&str; 216] = [
    "abc", "aifc", "annotationlib", "argparse", "array", "ast", "asynchat", "asyncio", "asyncore", "atexit",
    "audioop", "base64", "bdb", "binascii", "binhex", "bisect", "builtins", "bz2", "cProfile", "calendar", "cgi",
    "cgitb", "chunk", "cmath", "cmd", "code", "codecs", "codeop", "collections", "colorsys", "compileall",
    "compression", "concurrent", "configparser", "contextlib", "contextvars", "copy", "copyreg", "crypt", "csv",
    "ctypes", "curses", "dataclasses", "datetime", "dbm", "decimal", "difflib", "dis", "distutils", "doctest",
    "dummy_threading", "email", "encodings", "ensurepip", "enum", "errno", "faulthandler", "fcntl", "filecmp",
    "fileinput", "fnmatch", "formatter", "fractions", "ftplib", "functools", "gc", "genericpath", "getopt", "getpass",
    "gettext", "glob", "graphlib", "grp", "gzip", "hashlib", "heapq", "hmac", "html", "http", "imaplib", "imghdr",
    "imp", "importlib", "inspect", "io", "ipaddress", "itertools", "json", "keyword", "lib2to3", "linecache",
    "locale", "logging", "lzma", "macpath", "mailbox", "mailcap", "marshal", "math", "mimetypes", "mmap",
    "modulefinder", "multiprocessing", "netrc", "nis", "nntplib", "ntpath", "nturl2path", "numbers", "opcode",
    "operator", "optparse", "os", "ossaudiodev", "parser", "pathlib", "pdb", "pickle", "pickletools", "pipes",
    "pkgutil", "platform", "plistlib", "poplib", "posix", "posixpath", "pprint", "profile", "pstats", "pty", "pwd",
    "py_compile", "pyclbr", "pydoc", "pydoc_data", "pyexpat", "queue", "quopri", "random", "re", "readline",
    "reprlib", "resource", "rlcompleter", "runpy", "sched", "secrets", "select", "selectors", "shelve", "shlex",
    "shutil", "signal", "site", "smtpd", "smtplib", "sndhdr", "socket", "socketserver", "spwd", "sqlite3",
    "sre_compile", "sre_constants", "sre_parse", "ssl", "stat", "statistics", "string", "stringprep", "struct",
    "subprocess", "sunau", "symbol", "symtable", "sys", "sysconfig", "syslog", "tabnanny", "tarfile", "telnetlib",
    "tempfile", "termios", "textwrap", "threading", "time", "timeit", "tkinter", "token", "tokenize", "tomllib",
    "trace", "traceback", "tracemalloc", "tty", "turtle", "types", "typing", "unicodedata", "unittest", "urllib",
    "uu", "uuid", "venv", "warnings", "wave", "weakref", "webbrowser", "wsgiref", "xdrlib", "xml", "xmlrpc", "zipapp",
    "zipfile", "zipimport", "zlib", "zoneinfo",
];

/// Packages that the user's lines import.
pub(super) struct Imports<'a> {
    recording: &'a Recording,
    symbols: &'a Symbols,
    owners: &'a Owners,
    roots: &'a [PathBuf],
    texts: FxHashMap<u32, SourceText>,
    names: FxHashMap<LineKey, Option<String>>,
    /// Package of the first module that ran below each line.
    observed: Option<FxHashMap<LineKey, String>>,
}

impl<'a> Imports<'a> {
    pub(super) fn new(
        recording: &'a Recording,
        symbols: &'a Symbols,
        owners: &'a Owners,
        roots: &'a [PathBuf],
    ) -> Imports<'a> {
        let (texts, names) = (FxHashMap::default(), FxHashMap::default());
        Imports { recording, symbols, owners, roots, texts, names, observed: None }
    }

    /// Returns the package that a user's line imports, if it is known.
    pub(super) fn package(&mut self, line: LineKey) -> Option<&str> {
        if !self.names.contains_key(&line) {
            let name = self.written_name(line).or_else(|| self.observed_name(line));
            self.names.insert(line, name);
        }
        self.names[&line].as_deref()
    }

    fn written_name(&mut self, (source, line): LineKey) -> Option<String> {
        let path = &self.symbols.sources[source as usize];
        let roots = self.roots;
        let text = self.texts.entry(source).or_insert_with(|| SourceText::open(path, roots, &Compiled::Unknown));
        let names = imported_names(text.line(line)?);
        match names.iter().find(|name| STANDARD_MODULES.binary_search(name).is_err()) {
            Some(&"") => package_of_module(self.owners, path, ""),
            Some(name) => Some((*name).to_owned()),
            None => (!names.is_empty()).then(|| STANDARD_LIBRARY.to_owned()),
        }
    }

    fn observed_name(&mut self, line: LineKey) -> Option<String> {
        let (recording, symbols, owners) = (self.recording, self.symbols, self.owners);
        self.observed.get_or_insert_with(|| observe_modules(recording, symbols, owners)).get(&line).cloned()
    }
}

fn observe_modules(recording: &Recording, symbols: &Symbols, owners: &Owners) -> FxHashMap<LineKey, String> {
    let mut observed = FxHashMap::default();
    for stack in 0..recording.stacks.len() as u32 {
        let mut importing_line = None;
        let mut is_importing = false;
        let locations = recording.stacks.get(stack).iter().rev();
        for frame in locations.flat_map(|location| symbols.frames(*location).iter().rev()) {
            let function = symbols.function(frame);
            if function.kind != Kind::Python {
                continue;
            }
            if function.module.starts_with("<frozen importlib") || function.module.ends_with("/importlib/__init__.py") {
                is_importing = true;
                continue;
            }
            if let (true, "<module>", Some(line)) = (is_importing, function.base.as_str(), importing_line) {
                let (source, _): LineKey = line;
                let importer = &symbols.sources[source as usize];
                if let Some(name) = package_of_module(owners, &function.module, importer) {
                    observed.entry(line).or_insert(name);
                }
            }
            importing_line = frame.source.zip(frame.line);
            is_importing = false;
        }
    }
    observed
}

/// Returns the package of a module that another file imported: that of its directory, unless both share the directory.
fn package_of_module(owners: &Owners, path: &str, importer: &str) -> Option<String> {
    if let Some(library) = owners.package(path) {
        return Some(library.to_owned());
    }
    let (path, importer) = (Path::new(path), Path::new(importer));
    let is_package = path.file_name()? == "__init__.py";
    if !is_package && path.parent() == importer.parent() {
        return Some(path.file_stem()?.to_str()?.to_owned());
    }
    // The directory may be gone, or on another machine.
    let mut package = path.parent()?;
    while let Some(parent) = package.parent().filter(|parent| parent.join("__init__.py").exists()) {
        package = parent;
    }
    Some(package.file_name()?.to_str()?.to_owned())
}

/// Returns the top-level names that a statement imports; the name of a relative import is empty. Returns an empty list
/// if the line is not an import.
fn imported_names(line: &str) -> Vec<&str> {
    let statement = line.rsplit(';').map(str::trim_start).find(|part| is_import(part)).or_else(|| {
        // `try: import numpy`, `if x: import numpy`.
        line.split_once(": ").map(|(_, rest)| rest.trim_start()).filter(|rest| is_import(rest))
    });
    let Some((keyword, rest)) = statement.and_then(|statement| statement.split_once(' ')) else { return Vec::new() };
    let names = if keyword == "from" { rest.split(' ').next().unwrap_or(rest) } else { rest };
    let top_level = |name: &str| {
        let end = name.find(|character: char| !(character.is_alphanumeric() || character == '_'));
        end.unwrap_or(name.len())
    };
    let names = names.split(',').map(str::trim_start).map(|name| &name[..top_level(name)]);
    names.filter(|name| !name.is_empty() || rest.starts_with('.')).collect()
}

fn is_import(statement: &str) -> bool {
    statement.starts_with("import ") || statement.starts_with("from ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_name_packages() {
        assert!(STANDARD_MODULES.is_sorted());
        for (line, names) in [
            ("import numpy as np", ["numpy"].as_slice()),
            ("    from heavy.table import row, column", &["heavy"]),
            ("import a.b, c  # d", &["a", "c"]),
            ("x = 1; import heavy", &["heavy"]),
            ("try: import heavy", &["heavy"]),
            ("from . import row", &[""]),
            ("from .table import row", &[""]),
            ("importlib.import_module(name)", &[]),
            ("importance = 3", &[]),
            ("import ", &[]),
        ] {
            assert_eq!(imported_names(line), names, "{line}");
        }
    }

    #[test]
    fn modules_belong_to_packages() {
        for (path, importer, package) in [
            ("/a/heavy/m1.py", "/a/prog.py", "heavy"),
            ("/a/heavy/__init__.py", "/a/prog.py", "heavy"),
            ("/a/table.py", "/a/prog.py", "table"),
            ("/x/site-packages/numpy/core/x.py", "/a/prog.py", "numpy"),
            ("/usr/lib/python3.12/json/__init__.py", "/a/prog.py", STANDARD_LIBRARY),
        ] {
            assert_eq!(package_of_module(&Owners::default(), path, importer).as_deref(), Some(package), "{path}");
        }
    }
}
