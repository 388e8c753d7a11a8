//! Owners of the modules of a frozen program (PyInstaller). Such a program does not load jitlisten's package, which
//! would record them, and its source files have relative paths.

use std::collections::BTreeSet;

use crate::recording::{Interpreter, Recording};

/// Returns the facts of a frozen program: its folder contains the interpreter's library, and a directory for each
/// package that has a library. `None` for other programs.
pub(super) fn frozen_interpreter(recording: &Recording) -> Option<Interpreter> {
    let paths = || recording.files.iter().map(|file| file.path.as_str());
    let folder = paths().find_map(|path| path.rsplit_once('/').filter(|(folder, name)| is_frozen(folder, name)))?.0;
    let inside = paths().filter_map(|path| path.strip_prefix(folder)?.strip_prefix('/')?.split_once('/'));
    let directories: BTreeSet<&str> = inside.map(|(directory, _)| directory).collect();
    let (library, packages): (Vec<_>, Vec<_>) =
        directories.into_iter().partition(|directory| directory.starts_with("python3"));
    let packages: Vec<String> = packages.into_iter().map(str::to_owned).collect();
    Some(Interpreter {
        library: library.into_iter().map(|directory| format!("{folder}/{directory}")).collect(),
        installed: vec![(folder.to_owned(), packages.clone())],
        frozen: packages,
        frozen_library: STANDARD_MODULES.split_whitespace().map(str::to_owned).collect(),
        ..Interpreter::default()
    })
}

/// Returns true for the interpreter's library in the folder of a frozen program. A program that is one file unpacks
/// into a temporary folder `_MEI...`.
fn is_frozen(folder: &str, name: &str) -> bool {
    let directory = folder.rsplit('/').next().unwrap_or_default();
    name.starts_with("libpython") && (directory == "_internal" || directory.starts_with("_MEI"))
}

/// Returns true for a module of PyInstaller's loader.
pub(super) fn is_loader(module: &str) -> bool {
    ["pyimod", "pyiboot", "pyi_rth_"].iter().any(|prefix| module.starts_with(prefix))
}

/// Modules of Python's standard library that are written in Python, from 3.8 to 3.14.
const STANDARD_MODULES: &str = "\
    __future__ _aix_support _bootsubprocess _collections_abc _compat_pickle _compression _markupbase _osx_support \
    _py_abc _pydecimal _pyio _sitebuiltins _strptime _threading_local _weakrefset abc aifc annotationlib argparse \
    ast asynchat asyncio asyncore base64 bdb binhex bisect bz2 cProfile calendar cgi cgitb chunk cmd code codecs \
    codeop collections colorsys compileall compression concurrent configparser contextlib contextvars copy copyreg \
    crypt csv ctypes curses dataclasses datetime dbm decimal difflib dis distutils doctest dummy_threading email \
    encodings ensurepip enum filecmp fileinput fnmatch formatter fractions ftplib functools genericpath getopt \
    getpass gettext glob graphlib gzip hashlib heapq hmac html http imaplib imghdr imp importlib inspect io \
    ipaddress json keyword lib2to3 linecache locale logging lzma macpath mailbox mailcap mimetypes modulefinder \
    multiprocessing netrc nntplib ntpath nturl2path numbers opcode operator optparse os pathlib pdb pickle \
    pickletools pipes pkgutil platform plistlib poplib posixpath pprint profile pstats pty py_compile pyclbr pydoc \
    pydoc_data queue quopri random re reprlib rlcompleter runpy sched secrets selectors shelve shlex shutil signal \
    site smtpd smtplib sndhdr socket socketserver sqlite3 sre_compile sre_constants sre_parse ssl stat statistics \
    string stringprep struct subprocess sunau symbol symtable sysconfig tabnanny tarfile telnetlib tempfile \
    textwrap threading timeit tkinter token tokenize tomllib trace traceback tracemalloc tty turtle types typing \
    unittest urllib uu uuid venv warnings wave weakref webbrowser wsgiref xdrlib xml xmlrpc zipapp zipfile \
    zipimport zoneinfo";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::MappedFile;

    #[test]
    fn the_folder_of_a_frozen_program_tells_its_packages() {
        let recording = |paths: &[&str]| {
            let file = |path: &&str| MappedFile { path: (*path).to_owned(), build_id: Vec::new(), root: None };
            let mut recording = Recording::default();
            recording.files.extend(paths.iter().map(file));
            recording
        };
        let facts = frozen_interpreter(&recording(&[
            "/usr/lib/libc.so.6",
            "/tmp/_MEIx1/numba/_helperlib.so",
            "/tmp/_MEIx1/libpython3.12.so.1.0",
            "/tmp/_MEIx1/python3.12/lib-dynload/_json.so",
            "/tmp/_MEIx1/numpy.libs/libgfortran.so",
        ]));
        let facts = facts.expect("a frozen program");
        assert_eq!(facts.frozen, ["numba", "numpy.libs"]);
        assert_eq!(facts.library, ["/tmp/_MEIx1/python3.12"]);
        assert!(facts.frozen_library.iter().any(|module| module == "json"));
        assert_eq!(frozen_interpreter(&recording(&["/opt/py/lib/libpython3.12.so.1.0"])), None);
    }
}
