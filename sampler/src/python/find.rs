//! Finds CPython in this process, by its symbols in the program or a library.

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
use super::layout::{DEBUG_OFFSETS_BYTES, Layout};
use super::tasks::{self, Tasks};
use crate::writer::perf_data::Mapping;

/// Symbols that an interpreter must have.
const RUNTIME_SYMBOL: &str = "_PyRuntime";
const EVALUATOR_SYMBOL: &str = "_PyEval_EvalFrameDefault";
const THIS_STATE_SYMBOL: &str = "PyGILState_GetThisThreadState";
/// Functions that only pass arguments to an evaluator. They are omitted from the stack where they have called an
/// evaluator, because they add no information to its Python frames.
const GLUE_FUNCTIONS: [&str; 27] = [
    EVALUATOR_SYMBOL,
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

/// The reason why Python frames cannot be read.
pub(super) type Refusal = String;

/// An interpreter, with the data that the writer needs about it.
pub(super) struct FoundInterpreter {
    pub(super) interpreter: Interpreter,
    /// Address ranges of glue functions, sorted.
    pub(super) glue: Vec<std::ops::Range<u64>>,
    /// Address of `PyCode_Type.tp_dealloc`.
    pub(super) dealloc: u64,
    /// Name of the interpreter, for the log.
    pub(super) name: String,
}

/// Searches files with new mappings; `maps_text` lists all mappings. `None` if there is no CPython.
pub(super) fn find(maps_text: &[u8], new_mappings: &[Mapping]) -> Option<Result<FoundInterpreter, Refusal>> {
    let program = fs::metadata("/proc/self/exe").ok().map(|metadata| metadata.ino());
    let lines: Vec<MapsLine<'_>> = MapsLine::parse_all(maps_text).collect();
    let is_candidate = |line: &&MapsLine<'_>| {
        let name = line.path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        let is_named = name.starts_with(b"libpython") || name.starts_with(b"python");
        let is_candidate = line.offset == 0 && line.inode != 0 && (is_named || program == Some(line.inode));
        is_candidate && new_mappings.iter().any(|mapping| mapping.inode == line.inode)
    };
    lines.iter().filter(is_candidate).find_map(|line| find_in_file(line, &lines))
}

/// Symbols of the last interpreter, kept for fork children: reading them takes longer than all other work at the start
/// of a recording. A fork cannot happen while this mutex is locked, because its holder also holds the recorder's locks.
static LAST_SYMBOLS: Mutex<Option<(Vec<u8>, Arc<Symbols>)>> = Mutex::new(None);

/// Relevant symbols of one file, with their addresses in this process.
struct Symbols {
    addresses: BTreeMap<String, (u64, u64)>,
    glue: Vec<std::ops::Range<u64>>,
}

impl Symbols {
    fn read(path: &Path, start: u64) -> Option<Symbols> {
        let cache = ReadCache::new(File::open(path).ok()?);
        let file = ElfFile64::<Endianness, _>::parse(&cache).ok()?;
        let (endian, sections) = (file.endian(), file.elf_section_table());
        let first = file.elf_program_headers().iter().find(|header| header.p_type(endian) == elf::PT_LOAD)?;
        let bias = start.wrapping_sub(first.p_vaddr(endian) & !0xfff);
        let is_relevant = |name: &str| {
            matches!(
                name,
                RUNTIME_SYMBOL | THIS_STATE_SYMBOL | "_PyThreadState_UncheckedGet" | "Py_Version" | "Py_GetVersion"
            ) || matches!(name, "PyCode_Type" | "PyUnicode_Type" | "PyBytes_Type" | "PyCoro_Type" | "PyGen_Type")
        };
        let mut symbols = Symbols { addresses: BTreeMap::new(), glue: Vec::new() };
        for kind in [elf::SHT_DYNSYM, elf::SHT_SYMTAB] {
            let Ok(table) = sections.symbols(endian, &cache, kind) else { continue };
            // Read all names in one call, because one read per name would dominate the start of a recording.
            let names = sections.section(table.string_section()).and_then(|section| section.data(endian, &cache));
            let Ok(names) = names else { continue };
            let name = |symbol: &elf::Sym64<Endianness>| names.get(symbol.st_name(endian) as usize..);
            let is_runtime = |symbol| name(symbol).is_some_and(|name| name.starts_with(RUNTIME_SYMBOL.as_bytes()));
            if symbols.addresses.is_empty() && !table.symbols().iter().any(is_runtime) {
                continue;
            }
            for symbol in table.symbols().iter().filter(|symbol| symbol.st_value(endian) != 0) {
                let name = name(symbol).and_then(|name| CStr::from_bytes_until_nul(name).ok()?.to_str().ok());
                let Some(name) = name else { continue };
                let (address, size) = (bias.wrapping_add(symbol.st_value(endian)), symbol.st_size(endian));
                // Strip the suffix of compiler-generated copies, such as `call_function.lto_priv.0`.
                let base_name = name.split(".lto_priv").next().unwrap_or(name);
                if GLUE_FUNCTIONS.contains(&base_name) {
                    symbols.glue.push(address..address.wrapping_add(size));
                }
                if is_relevant(name) || name == EVALUATOR_SYMBOL {
                    symbols.addresses.insert(name.to_owned(), (address, size));
                }
            }
        }
        symbols.glue.sort_by_key(|range| (range.start, range.end));
        symbols.glue.dedup();
        symbols.addresses.contains_key(RUNTIME_SYMBOL).then_some(symbols)
    }

    fn get(&self, name: &str) -> u64 {
        self.addresses.get(name).map_or(0, |(address, _)| *address)
    }
}

/// Returns the interpreter in one file. `None` if the file is not CPython.
fn find_in_file(line: &MapsLine<'_>, lines: &[MapsLine<'_>]) -> Option<Result<FoundInterpreter, Refusal>> {
    let path = Path::new(OsStr::from_bytes(line.path));
    let start = line.range.start().0;
    let key = [line.path, &start.to_le_bytes(), &line.inode.to_le_bytes()].concat();
    let mut last = LAST_SYMBOLS.lock().unwrap_or_else(PoisonError::into_inner);
    let symbols = match &*last {
        Some((last_key, symbols)) if *last_key == key => Arc::clone(symbols),
        _ => {
            let symbols = Arc::new(Symbols::read(path, start)?);
            *last = Some((key, Arc::clone(&symbols)));
            symbols
        }
    };
    drop(last);
    Some(build_interpreter(&symbols, lines, path))
}

/// Checks the symbols, and collects everything that reading frames requires.
fn build_interpreter(symbols: &Symbols, lines: &[MapsLine<'_>], path: &Path) -> Result<FoundInterpreter, Refusal> {
    let missing = ["PyCode_Type", "PyUnicode_Type", "PyBytes_Type", EVALUATOR_SYMBOL]
        .into_iter()
        .find(|name| symbols.get(name) == 0);
    if let Some(name) = missing {
        return Err(format!("{} has no symbol {name}", path.display()));
    }
    let minor = read_minor_version(symbols).ok_or_else(|| format!("{}: unknown version of CPython", path.display()))?;
    let layout = if minor < 13 {
        Layout::of_release(minor)
    } else {
        super::read(symbols.get(RUNTIME_SYMBOL), DEBUG_OFFSETS_BYTES).and_then(|bytes| Layout::parse(&bytes))
    };
    let layout = layout.ok_or_else(|| format!("unsupported: the frames of CPython 3.{minor}"))?;
    let this_state_getter = if minor < 14 { symbols.get(THIS_STATE_SYMBOL) } else { 0 };
    let current_state_getter = if minor < 12 { symbols.get("_PyThreadState_UncheckedGet") } else { 0 };
    if (minor < 14 && this_state_getter == 0) || (minor < 12 && current_state_getter == 0) {
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
    let (start, size) = symbols.addresses.get(EVALUATOR_SYMBOL).copied().unwrap_or_default();
    let contains_evaluator =
        |line: &&MapsLine<'_>| line.is_executable() && line.range.contains(jitlisten::Address(start));
    let code = lines.iter().find(contains_evaluator).ok_or("its evaluator is not in executable memory")?;
    let interpreter = Interpreter {
        code: code.range.start().0..code.range.end().0,
        layout,
        types,
        runtime: symbols.get(RUNTIME_SYMBOL),
        this_state_getter,
        current_state_getter,
        evaluator: start..start.wrapping_add(size),
        tasks: OnceLock::new(),
    };
    Ok(FoundInterpreter { interpreter, glue: symbols.glue.clone(), dealloc, name: format!("CPython 3.{minor}") })
}

/// Returns asyncio's offsets, if the mapped file contains them.
pub(super) fn find_tasks(mapping: &Mapping) -> Option<Tasks> {
    let cache = ReadCache::new(File::open(OsStr::from_bytes(&mapping.path)).ok()?);
    let file = ElfFile64::<Endianness, _>::parse(&cache).ok()?;
    let endian = file.endian();
    let is_mapped_segment = |segment: &&elf::ProgramHeader64<Endianness>| {
        segment.p_type(endian) == elf::PT_LOAD && segment.p_offset(endian) & !0xfff == mapping.offset
    };
    let start = file.elf_program_headers().iter().find(is_mapped_segment)?.p_vaddr(endian) & !0xfff;
    let section = file.section_by_name(tasks::SECTION)?.address();
    let address = mapping.start.wrapping_sub(start).wrapping_add(section);
    Tasks::parse(&super::read(address, tasks::SECTION_SIZE)?)
}

fn read_minor_version(symbols: &Symbols) -> Option<u8> {
    let version = symbols.get("Py_Version");
    if version != 0 {
        let bytes = super::read(version, 8)?;
        let (3, minor) = (*bytes.get(3)?, *bytes.get(2)?) else { return None };
        return Some(minor);
    }
    let function = Some(symbols.get("Py_GetVersion")).filter(|&address| address != 0)?;
    type GetVersion = unsafe extern "C" fn() -> *const c_char;
    // SAFETY: `Py_GetVersion` has this type, and may be called before `Py_Initialize`.
    let function = unsafe { std::mem::transmute::<usize, GetVersion>(function as usize) };
    // SAFETY: `Py_GetVersion` takes no argument and formats a constant.
    let text = unsafe { function() };
    // SAFETY: the result is a NUL-terminated string that is never freed.
    let text = unsafe { CStr::from_ptr(text) }.to_str().ok()?;
    text.strip_prefix("3.")?.split('.').next()?.parse().ok()
}
