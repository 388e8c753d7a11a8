//! Finds CPython in this process: the program, or a library, that has its symbols.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr, c_char};
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use jitlisten::plumbing::MapsLine;
use object::read::elf::{ElfFile64, ProgramHeader as _, SectionHeader as _, Sym as _};
use object::{Endianness, Object as _, ObjectSection as _, ReadCache, elf};

use super::interpreter::{Interpreter, Types};
use super::layout::{DEBUG_OFFSETS, Layout};
use super::tasks::{self, Tasks};
use crate::perf_data::Mapping;

/// What has to be there.
const RUNTIME: &str = "_PyRuntime";
const EVALUATOR: &str = "_PyEval_EvalFrameDefault";
const THIS_STATE: &str = "PyGILState_GetThisThreadState";
/// Functions that only bring arguments to an evaluator: called by it or by C, they say nothing beside the Python
/// function.
const GLUE: [&str; 27] = [
    EVALUATOR,
    "_PyEval_EvalFrame",
    "_PyEval_EvalFrameDefault.cold",
    "_PyEval_Vector",
    "_PyEval_EvalCode",
    "_PyEval_EvalCodeWithName",
    "PyEval_EvalCode",
    "PyEval_EvalCodeEx",
    "PyEval_EvalFrame",
    "PyEval_EvalFrameEx",
    "_PyFunction_Vectorcall",
    "_PyFunction_FastCallDict",
    "function_code_fastcall",
    "PyObject_Vectorcall",
    "_PyObject_Vectorcall",
    "_PyObject_VectorcallTstate",
    "_PyVectorcall_Call",
    "PyVectorcall_Call",
    "PyObject_VectorcallDict",
    "_PyObject_FastCallDict",
    "_PyObject_FastCallDictTstate",
    "PyObject_Call",
    "_PyObject_Call",
    "_PyObject_Call_Prepend",
    "method_vectorcall",
    "_PyObject_MakeTpCall",
    "call_function",
];

/// Why frames are not read.
pub(super) type Refusal = String;

/// What was found.
pub(super) struct Found {
    pub(super) interpreter: Interpreter,
    /// Sorted.
    pub(super) glue: Vec<std::ops::Range<u64>>,
    /// `PyCode_Type.tp_dealloc`
    pub(super) dealloc: u64,
    /// Whose it is, for the log.
    pub(super) name: String,
}

/// Looks at files with new mappings, of all that `text` lists; `None`: there is no CPython.
pub(super) fn find(text: &[u8], new: &[Mapping]) -> Option<Result<Found, Refusal>> {
    let program = fs::metadata("/proc/self/exe").ok().map(|about| about.ino());
    let lines: Vec<MapsLine<'_>> = MapsLine::all(text).collect();
    let is_candidate = |line: &&MapsLine<'_>| {
        let name = line.path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        let is_named = name.starts_with(b"libpython") || name.starts_with(b"python");
        let is_candidate = line.offset == 0 && line.inode != 0 && (is_named || program == Some(line.inode));
        is_candidate && new.iter().any(|mapping| mapping.inode == line.inode)
    };
    lines.iter().filter(is_candidate).find_map(|line| in_file(line, &lines))
}

/// The last interpreter's, for the child of a fork: to read them takes longer than all else in the start of a recording.
/// Nothing forks meanwhile: this is done under the recorder's locks.
static LAST: Mutex<Option<(Vec<u8>, Arc<Symbols>)>> = Mutex::new(None);

/// The symbols of one file that are asked for, and where it is mapped.
struct Symbols {
    found: BTreeMap<String, (u64, u64)>,
    glue: Vec<std::ops::Range<u64>>,
}

impl Symbols {
    fn read(path: &Path, start: u64) -> Option<Symbols> {
        let cache = ReadCache::new(File::open(path).ok()?);
        let file = ElfFile64::<Endianness, _>::parse(&cache).ok()?;
        let (endian, sections) = (file.endian(), file.elf_section_table());
        let first = file.elf_program_headers().iter().find(|header| header.p_type(endian) == elf::PT_LOAD)?;
        let bias = start.wrapping_sub(first.p_vaddr(endian) & !0xfff);
        let wanted = |name: &str| {
            matches!(name, RUNTIME | THIS_STATE | "_PyThreadState_UncheckedGet" | "Py_Version" | "Py_GetVersion")
                || matches!(name, "PyCode_Type" | "PyUnicode_Type" | "PyBytes_Type" | "PyCoro_Type" | "PyGen_Type")
        };
        let mut symbols = Symbols { found: BTreeMap::new(), glue: Vec::new() };
        for kind in [elf::SHT_DYNSYM, elf::SHT_SYMTAB] {
            let Ok(table) = sections.symbols(endian, &cache, kind) else { continue };
            // All names at once: a read for each takes longer than all else in the start of a recording.
            let names = sections.section(table.string_section()).and_then(|section| section.data(endian, &cache));
            let Ok(names) = names else { continue };
            let name = |symbol: &elf::Sym64<Endianness>| names.get(symbol.st_name(endian) as usize..);
            let is_runtime = |symbol| name(symbol).is_some_and(|name| name.starts_with(RUNTIME.as_bytes()));
            if symbols.found.is_empty() && !table.symbols().iter().any(is_runtime) {
                continue;
            }
            for symbol in table.symbols().iter().filter(|symbol| symbol.st_value(endian) != 0) {
                let name = name(symbol).and_then(|name| CStr::from_bytes_until_nul(name).ok()?.to_str().ok());
                let Some(name) = name else { continue };
                let (address, size) = (bias.wrapping_add(symbol.st_value(endian)), symbol.st_size(endian));
                // Copies for a compiler's reasons: `call_function.lto_priv.0`.
                let plain = name.split(".lto_priv").next().unwrap_or(name);
                if GLUE.contains(&plain) {
                    symbols.glue.push(address..address.wrapping_add(size));
                }
                if wanted(name) || name == EVALUATOR {
                    symbols.found.insert(name.to_owned(), (address, size));
                }
            }
        }
        symbols.glue.sort_by_key(|range| (range.start, range.end));
        symbols.glue.dedup();
        symbols.found.contains_key(RUNTIME).then_some(symbols)
    }

    fn get(&self, name: &str) -> u64 {
        self.found.get(name).map_or(0, |(address, _)| *address)
    }
}

fn in_file(line: &MapsLine<'_>, lines: &[MapsLine<'_>]) -> Option<Result<Found, Refusal>> {
    let path = Path::new(OsStr::from_bytes(line.path));
    let start = line.range.start().0;
    let key = [line.path, &start.to_le_bytes(), &line.inode.to_le_bytes()].concat();
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    let symbols = match &*last {
        Some((known, symbols)) if *known == key => Arc::clone(symbols),
        _ => {
            let symbols = Arc::new(Symbols::read(path, start)?);
            *last = Some((key, Arc::clone(&symbols)));
            symbols
        }
    };
    drop(last);
    Some(found(&symbols, lines, path))
}

fn found(symbols: &Symbols, lines: &[MapsLine<'_>], path: &Path) -> Result<Found, Refusal> {
    let missing =
        ["PyCode_Type", "PyUnicode_Type", "PyBytes_Type", EVALUATOR].into_iter().find(|name| symbols.get(name) == 0);
    if let Some(name) = missing {
        return Err(format!("{} has no symbol {name}", path.display()));
    }
    let minor = minor(symbols).ok_or_else(|| format!("{}: unknown version of CPython", path.display()))?;
    let layout = if minor < 13 {
        Layout::of_release(minor)
    } else {
        super::read(symbols.get(RUNTIME), DEBUG_OFFSETS).and_then(|bytes| Layout::parse(&bytes))
    };
    let layout = layout.ok_or_else(|| format!("unsupported: the frames of CPython 3.{minor}"))?;
    let this_state = if minor < 14 { symbols.get(THIS_STATE) } else { 0 };
    let current_state = if minor < 12 { symbols.get("_PyThreadState_UncheckedGet") } else { 0 };
    if (minor < 14 && this_state == 0) || (minor < 12 && current_state == 0) {
        return Err(format!("{} has no function for a thread's state", path.display()));
    }
    let types = Types {
        code: symbols.get("PyCode_Type"),
        text: symbols.get("PyUnicode_Type"),
        bytes: symbols.get("PyBytes_Type"),
        coroutine: symbols.get("PyCoro_Type"),
        generator: symbols.get("PyGen_Type"),
    };
    let dealloc = types.code + u64::from(layout.type_dealloc);
    let is_writable = |line: &MapsLine<'_>| line.is_writable() && line.range.contains(jitlisten::Address(dealloc));
    if !lines.iter().any(is_writable) {
        return Err("its type of code objects cannot be changed".to_owned());
    }
    let (start, size) = symbols.found.get(EVALUATOR).copied().unwrap_or_default();
    let of_evaluator = |line: &&MapsLine<'_>| line.is_executable() && line.range.contains(jitlisten::Address(start));
    let code = lines.iter().find(of_evaluator).ok_or("its evaluator is not in executable memory")?;
    let interpreter = Interpreter {
        code: code.range.start().0..code.range.end().0,
        layout,
        types,
        runtime: symbols.get(RUNTIME),
        this_state,
        current_state,
        evaluator: start..start.wrapping_add(size),
        tasks: OnceLock::new(),
    };
    Ok(Found { interpreter, glue: symbols.glue.clone(), dealloc, name: format!("CPython 3.{minor}") })
}

/// asyncio's offsets, if the file of a mapping has them.
pub(super) fn tasks(mapping: &Mapping) -> Option<Tasks> {
    let cache = ReadCache::new(File::open(OsStr::from_bytes(&mapping.path)).ok()?);
    let file = ElfFile64::<Endianness, _>::parse(&cache).ok()?;
    let endian = file.endian();
    let is_its = |segment: &&elf::ProgramHeader64<Endianness>| {
        segment.p_type(endian) == elf::PT_LOAD && segment.p_offset(endian) & !0xfff == mapping.offset
    };
    let start = file.elf_program_headers().iter().find(is_its)?.p_vaddr(endian) & !0xfff;
    let section = file.section_by_name(tasks::SECTION)?.address();
    let address = mapping.start.wrapping_sub(start).wrapping_add(section);
    Tasks::parse(&super::read(address, tasks::SECTION_SIZE)?)
}

/// The second number of the version.
fn minor(symbols: &Symbols) -> Option<u8> {
    let version = symbols.get("Py_Version");
    if version != 0 {
        let bytes = super::read(version, 8)?;
        let (3, minor) = (*bytes.get(3)?, *bytes.get(2)?) else { return None };
        return Some(minor);
    }
    let function = Some(symbols.get("Py_GetVersion")).filter(|&address| address != 0)?;
    type GetVersion = unsafe extern "C" fn() -> *const c_char;
    // SAFETY: the function of that name; it may be called before `Py_Initialize`.
    let function = unsafe { std::mem::transmute::<usize, GetVersion>(function as usize) };
    // SAFETY: `Py_GetVersion` takes nothing and formats a constant.
    let text = unsafe { function() };
    // SAFETY: a terminated text, which is not freed.
    let text = unsafe { CStr::from_ptr(text) }.to_str().ok()?;
    text.strip_prefix("3.")?.split('.').next()?.parse().ok()
}
