//! Symbolization of locations: function, file, line, and inlined calls.

mod callees;
mod elf;
mod files;
mod generated;
mod kernel;
mod library;
mod line_zero;
mod main_text;
mod nameless;
mod names;
mod perf_map;
mod roots;
mod shared_code;
mod skipped;
mod source_frame;

use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeSet;
use std::ops::Range;

pub(crate) use elf::{Hash, hash_contents};
pub use files::FileSymbols;
pub(crate) use files::{ImageCode, is_numba_file};
pub(crate) use library::{Library, NamedFiles, RecordingFiles, SampledFile};
pub(crate) use names::is_entry;
pub(crate) use roots::Roots;
pub(crate) use shared_code::SharedCode;
pub(crate) use skipped::insert_missing_callers;
pub use source_frame::SourceFrame;

use crate::distinct::Distinct;
use crate::lookup::{Lookup, source_path};
use crate::recording::{FilePosition, Location, Recording};
use files::Files;
use generated::NamedFrame;
use kernel::KernelSymbols;
use main_text::MainTexts;
pub(crate) use perf_map::MAX_MAP_BYTES;
use perf_map::{MapFiles, PerfMap};
use wire::recording::PythonImage;

/// Mappings with code of the kernel, such as `clock_gettime`. Other mappings without a file may hold compiled code.
const KERNEL_MAPPINGS: [&str; 2] = ["[vdso]", "[vsyscall]"];

/// Kind of code that a function belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Kind {
    /// Code compiled at run time.
    Compiled,
    /// Python function run by the interpreter.
    Python,
    /// Code in a program or library.
    Native,
    /// Code of the kernel.
    Kernel,
    /// Code at an address that neither a file nor a perf map covers.
    Unknown,
}

impl Kind {
    /// Name in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Compiled => "compiled",
            Kind::Python => "python",
            Kind::Native => "native",
            Kind::Kernel => "kernel",
            Kind::Unknown => "unknown",
        }
    }
}

/// Symbolized function.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Function {
    /// Name with argument types and version of the specialisation.
    pub name: String,
    /// Name without argument types and version, equal for all compilations of one function.
    pub base: String,
    /// Kind of code.
    pub kind: Kind,
    /// Name of the file that contains the function, or `[kernel]`.
    pub module: String,
}

/// Function and line at a location, or a call inlined there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Index into [`Symbols::functions`].
    pub function: u32,
    /// Index into [`Symbols::sources`].
    pub source: Option<u32>,
    /// Line number. 0 if the compiler assigned none; `None` without a line table.
    pub line: Option<u32>,
    /// True if the call to this frame was inlined.
    pub inlined: bool,
    /// True if `line` was inferred from surrounding instructions, because the compiler named none.
    pub approximate: bool,
}

/// Symbols of a recording.
#[derive(Debug, Default)]
pub struct Symbols {
    /// Distinct functions.
    pub functions: Vec<Function>,
    /// Distinct source files, as the compiler names them.
    pub sources: Vec<String>,
    /// Source hashes at the time of compilation, by path. A source has several if it changed.
    pub source_hashes: FxHashMap<String, Vec<String>>,
    /// Paths that stand for programs that are in no file in [`sources`](Symbols::sources), and their texts, if known.
    pub main_texts: Vec<(&'static str, Option<String>)>,
    /// Notes about symbols that could not be found.
    pub notes: Vec<String>,
    frames: Vec<Frame>,
    ends: Vec<u32>,
}

impl Symbols {
    /// Looks up every location of a recording.
    pub fn resolve(recording: &Recording, lookup: &Lookup) -> Symbols {
        Symbols::resolve_with(&mut SymbolCache::default(), recording, lookup)
    }

    /// Same as [`resolve`](Symbols::resolve), with a cache of open files.
    pub fn resolve_with(cache: &mut SymbolCache, recording: &Recording, lookup: &Lookup) -> Symbols {
        cache.prepare(recording, lookup);
        let mut resolver = Resolver::new(cache, lookup, MapFiles::new(recording, lookup), MainTexts::new(recording));
        for location in &recording.locations {
            resolver.resolve_location(location);
            let end = resolver.symbols.frames.len() as u32;
            resolver.symbols.ends.push(end);
        }
        resolver.separate_generated(recording);
        resolver.finish()
    }

    /// Returns the frames at a location, innermost inlined call first. Never empty.
    pub fn frames(&self, location: u32) -> &[Frame] {
        &self.frames[self.frame_range(location)]
    }

    /// Returns the indices of a location's frames in [`all_frames`](Symbols::all_frames).
    pub(crate) fn frame_range(&self, location: u32) -> Range<usize> {
        let index = location as usize;
        let start = index.checked_sub(1).map_or(0, |previous| self.ends[previous]);
        start as usize..self.ends[index] as usize
    }

    /// Returns the frames of all locations.
    pub(crate) fn all_frames(&self) -> &[Frame] {
        &self.frames
    }

    /// Replaces Python's name of a program that is in no file by the path that stands for it.
    pub(crate) fn rename_main_text(&self, path: &mut String) {
        if let Some((main_path, _)) = self.main_texts.iter().find(|(main, _)| main_text::python_name(main) == path) {
            *path = (*main_path).to_owned();
        }
    }

    /// Returns the function of a frame.
    pub fn function(&self, frame: &Frame) -> &Function {
        &self.functions[frame.function as usize]
    }
}

/// Open files of a recording, kept open between calls while the recording grows.
#[derive(Default)]
pub struct SymbolCache {
    files: Files,
    /// Perf maps by origin and pid.
    maps: FxHashMap<(u32, u32), PerfMap>,
    kernel: KernelSymbols,
    readable: FxHashMap<(u32, String), String>,
    aliases: FxHashMap<(u32, String), String>,
}

impl SymbolCache {
    fn prepare(&mut self, recording: &Recording, lookup: &Lookup) {
        if !self.files.extend(recording, lookup) {
            self.aliases.clear();
        }
        self.maps.retain(|_, map| !map.has_grown());
        if lookup.kernel {
            let is_local = matches!(recording.origins.as_slice(), [only] if only.is_here() == Some(true));
            self.kernel = KernelSymbols::load(&recording.facts.kernel, is_local);
        }
    }
}

/// Names the library functions without a symbol that compiled code calls.
pub(crate) fn name_callees(cache: &mut SymbolCache, recording: &mut Recording, lookup: &Lookup) {
    cache.prepare(recording, lookup);
    nameless::name_callees(&mut cache.files, recording);
}

impl std::fmt::Debug for SymbolCache {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_tuple("SymbolCache").finish_non_exhaustive()
    }
}

struct Resolver<'a> {
    lookup: &'a Lookup,
    cache: &'a mut SymbolCache,
    maps: MapFiles<'a>,
    main_texts: MainTexts,
    symbols: Symbols,
    functions: Distinct<Function>,
    sources: Distinct<String>,
}

impl<'a> Resolver<'a> {
    fn new(cache: &'a mut SymbolCache, lookup: &'a Lookup, maps: MapFiles<'a>, main_texts: MainTexts) -> Resolver<'a> {
        Resolver {
            lookup,
            cache,
            maps,
            main_texts,
            symbols: Symbols::default(),
            functions: Distinct::default(),
            sources: Distinct::default(),
        }
    }

    fn resolve_location(&mut self, location: &Location) {
        let Some(pid) = location.pid else { return self.push_kernel_frame(location.address) };
        if let Some(position) = location.position.filter(|_| location.is_function) {
            let name = self.cache.files.symbol(position).unwrap_or_else(|| "[unknown]".to_owned());
            let module = self.cache.files.name(position.file).to_owned();
            let name = self.readable_name(position.file, &name);
            return self.push_named_frame(name, Kind::Compiled, module);
        }
        if let Some(position) = location.position
            && self.push_file_frames(position, location.callee.as_deref())
        {
            return;
        }
        let maps = &self.maps;
        let map = self.cache.maps.entry((location.origin, pid)).or_insert_with(|| maps.open(location.origin, pid));
        if let Some(name) = map.find(location.address).map(str::to_owned) {
            return self.push_perf_map_frame(&name);
        }
        let module = location.position.map(|position| self.cache.files.name(position.file).to_owned());
        let is_compiled = location.position.is_some_and(|position| self.cache.files.is_image(position.file));
        match module {
            Some(module) if is_compiled => self.push_nameless_frame(module),
            Some(module) if KERNEL_MAPPINGS.contains(&module.as_str()) => {
                self.push_named_frame(module.clone(), Kind::Native, module)
            }
            Some(module) if !files::is_anonymous(&module) => {
                self.push_named_frame(format!("[{module}]"), Kind::Native, module)
            }
            _ => self.push_named_frame("[unknown]".to_owned(), Kind::Unknown, String::new()),
        }
    }

    fn push_kernel_frame(&mut self, address: u64) {
        let name = self.cache.kernel.find(address).unwrap_or("[kernel]").to_owned();
        self.push_named_frame(name, Kind::Kernel, "[kernel]".to_owned());
    }

    /// Adds a frame from a perf map: compiled code, or a Python function.
    fn push_perf_map_frame(&mut self, name: &str) {
        match names::parse_python_name(name) {
            Some((function, file)) => {
                let file = self.source(file, &function, None);
                let source = self.sources.number(file.clone());
                let function = Function {
                    base: function.clone().into_owned(),
                    name: function.into_owned(),
                    kind: Kind::Python,
                    module: file,
                };
                let function = self.functions.number(function);
                self.push(function, Some(source), None);
            }
            None => self.push_named_frame(name.to_owned(), Kind::Compiled, "[perf map]".to_owned()),
        }
    }

    /// Adds the frames at a position in a file, which compiled code calls `callee`. Returns false if the file lacks
    /// symbols.
    fn push_file_frames(&mut self, FilePosition { file, offset }: FilePosition, callee: Option<&str>) -> bool {
        let Some(symbolized) = self.cache.files.find(file, offset, self.lookup.native_lines) else { return false };
        if symbolized.is_image && self.push_interpreted(&symbolized) {
            return true;
        }
        let kind = if symbolized.is_image { Kind::Compiled } else { Kind::Native };
        let module = self.cache.files.name(file).to_owned();
        let outermost = symbolized.frames.len().saturating_sub(1);
        if symbolized.frames.is_empty() {
            let name = symbolized.symbol.or(callee.map(str::to_owned));
            match name.or_else(|| self.cache.files.debug_symbol(FilePosition { file, offset })) {
                Some(name) => {
                    let name = self.readable_name(file, &name);
                    self.push_named_frame(name, kind, module);
                }
                None if symbolized.is_image => self.push_nameless_frame(module),
                None => self.push_named_frame(format!("[{module}]"), kind, module),
            }
            return true;
        }
        let mut named = Vec::with_capacity(symbolized.frames.len());
        for (index, frame) in symbolized.frames.into_iter().enumerate() {
            // The symbol table has the readable name of the outermost function, unless the compiler generated that
            // function.
            let name = match (&symbolized.symbol, frame.linkage_name) {
                (Some(symbol), Some(name)) if index == outermost && names::names_origin(&name, symbol) => name,
                (Some(symbol), _) if index == outermost => symbol.clone(),
                (_, Some(name)) => self.alias(file, &name),
                (_, None) => format!("[{module}]"),
            };
            named.push(NamedFrame { name: self.readable_name(file, &name), file: frame.file, line: frame.line });
        }
        let frames = generated::remove_generated(named);
        let outermost = frames.len() - 1;
        for (index, NamedFrame { name, file, line }) in frames.into_iter().enumerate() {
            let base = names::base(&name).to_owned();
            let source = file.map(|path| self.source(&path, &base, line));
            let source = source.map(|path| self.sources.number(path));
            let function = self.functions.number(Function { name, base, kind, module: module.clone() });
            let line = line.or(source.map(|_| 0));
            let approximate = symbolized.approximate && index == 0;
            self.symbols.frames.push(Frame { function, source, line, inlined: index != outermost, approximate });
        }
        true
    }

    /// Adds a Python frame with its line, from an image that `jitlisten record` wrote (`sampler/src/python`).
    fn push_interpreted(&mut self, symbolized: &files::Symbolized) -> bool {
        let Some((name, file)) = symbolized.symbol.as_deref().and_then(names::parse_python_name) else { return false };
        let frame = symbolized.frames.last();
        let line = frame.and_then(|frame| frame.line);
        let (name, module) = (name.clone().into_owned(), self.source(file, &name, line));
        let source = frame.and_then(|frame| frame.file.as_deref()).unwrap_or(file);
        let source = self.source(source, &name, line);
        let source = self.sources.number(source);
        let function = self.functions.number(Function { base: name.clone(), name, kind: Kind::Python, module });
        self.push(function, Some(source), line);
        true
    }

    /// Returns the path of a source. A program that is in no file has a path of its own.
    fn source(&self, path: &str, function: &str, line: Option<u32>) -> String {
        self.main_texts.path(path, function, line).map_or_else(|| source_path(path), str::to_owned)
    }

    /// Gives top-level code that libraries generate with `exec` its own source again. It has the names and often the
    /// line numbers of a program that is in no file, but other Python functions call it.
    fn separate_generated(&mut self, recording: &Recording) {
        if self.main_texts.is_empty() {
            return;
        }
        let is_python = |frame: &Frame| self.functions.values[frame.function as usize].kind == Kind::Python;
        let mut generated = FxHashSet::default();
        for stack in 0..recording.stacks.len() as u32 {
            let frames = recording.stacks.get(stack).iter().flat_map(|location| self.symbols.frame_range(*location));
            let mut python: Vec<usize> = frames.filter(|index| is_python(&self.symbols.frames[*index])).collect();
            python.pop();
            generated.extend(python);
        }
        for index in generated {
            let frame = &mut self.symbols.frames[index];
            let function = &self.functions.values[frame.function as usize];
            if function.name == "<module>" && self.main_texts.has_path(&function.module) {
                let generated_path = main_text::python_name(&function.module);
                let function = Function { module: generated_path.to_owned(), ..function.clone() };
                frame.function = self.functions.number(function);
                frame.source = Some(self.sources.number(generated_path.to_owned()));
            }
        }
    }

    /// Returns the symbol table's name of an inlined function.
    fn alias(&mut self, file: u32, name: &str) -> String {
        let key = (file, name.to_owned());
        if let Some(alias) = self.cache.aliases.get(&key) {
            return alias.clone();
        }
        let alias = self.cache.files.alias(file, name).unwrap_or_else(|| name.to_owned());
        self.cache.aliases.insert(key, alias.clone());
        alias
    }

    fn readable_name(&mut self, file: u32, name: &str) -> String {
        if let Some(readable) = self.cache.readable.get(&(file, name.to_owned())) {
            return readable.clone();
        }
        let readable = names::readable(name);
        self.cache.readable.insert((file, name.to_owned()), readable.clone());
        readable
    }

    /// Adds a frame of an image that lacks its name. A process that is killed may not have written its last Python
    /// functions.
    fn push_nameless_frame(&mut self, image: String) {
        match PythonImage::parse(&image) {
            Some(_) => self.push_named_frame("[Python]".to_owned(), Kind::Python, String::new()),
            None => self.push_named_frame(format!("[{image}]"), Kind::Compiled, image),
        }
    }

    fn push_named_frame(&mut self, name: String, kind: Kind, module: String) {
        let base = names::base(&name).to_owned();
        let function = self.functions.number(Function { name, base, kind, module });
        self.push(function, None, None);
    }

    /// Adds a frame that does not come from a line table.
    fn push(&mut self, function: u32, source: Option<u32>, line: Option<u32>) {
        self.symbols.frames.push(Frame { function, source, line, inlined: false, approximate: false });
    }

    fn finish(self) -> Symbols {
        let mut symbols = self.symbols;
        symbols.main_texts = self.main_texts.into_texts();
        (symbols.functions, symbols.sources) = (self.functions.values, self.sources.values);
        join_inlined(&mut symbols);
        symbols.notes = self.cache.files.notes();
        symbols.notes.extend(self.maps.notes.into_inner());
        symbols.notes.extend(note_nameless_functions(&symbols.functions));
        for (path, hash) in self.cache.files.source_hashes() {
            let hashes = symbols.source_hashes.entry(path.clone()).or_default();
            if !hashes.contains(hash) {
                hashes.push(hash.clone());
            }
        }
        symbols
    }
}

/// Returns a note about libraries whose compiled functions are named only by their addresses (see
/// `shim/src/trackers/unwind_tables.rs`).
fn note_nameless_functions(functions: &[Function]) -> Option<String> {
    let library = |function: &Function| {
        let (library, address) = function.name.rsplit_once("+jit@")?;
        let has_address_name = function.kind == Kind::Compiled && u64::from_str_radix(address, 16).is_ok();
        has_address_name.then(|| library.to_owned())
    };
    let libraries: BTreeSet<String> = functions.iter().filter_map(library).collect();
    let libraries: Vec<String> = libraries.into_iter().collect();
    (!libraries.is_empty()).then(|| {
        format!(
            "compiled functions of {} have addresses for names: its LLVM has neither symbols nor RTTI, or it loads \
             cached code itself",
            libraries.join(", ")
        )
    })
}

/// Merges short names of inlined functions with full names. A line table may contain only the short name. If exactly
/// one function of that name has lines in the same source, both names denote that function.
fn join_inlined(symbols: &mut Symbols) {
    let last_component = |base: &str| base.rsplit('.').next().unwrap_or_default().to_owned();
    let mut qualified: FxHashMap<(String, u32), Vec<u32>> = FxHashMap::default();
    let mut short_names: Vec<(u32, u32)> = Vec::new();
    for frame in &symbols.frames {
        let (Some(source), function) = (frame.source, &symbols.functions[frame.function as usize]) else { continue };
        if function.kind != Kind::Compiled {
            continue;
        }
        if function.base.contains('.') {
            qualified.entry((last_component(&function.base), source)).or_default().push(frame.function);
        } else if frame.inlined {
            short_names.push((frame.function, source));
        }
    }
    short_names.sort_unstable();
    short_names.dedup();
    for (function, source) in short_names {
        let Some(candidates) = qualified.get(&(symbols.functions[function as usize].base.clone(), source)) else {
            continue;
        };
        let qualified_base = symbols.functions[candidates[0] as usize].base.clone();
        if candidates.iter().all(|candidate| symbols.functions[*candidate as usize].base == qualified_base) {
            let function = &mut symbols.functions[function as usize];
            function.base = qualified_base;
            function.name.push_str(" (inlined)");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_without_names_are_noted_once() {
        let function =
            |name: &str, kind| Function { name: name.to_owned(), base: String::new(), kind, module: String::new() };
        let functions = [
            function("libddx.so.4+jit@7f84ae81c000", Kind::Compiled),
            function("libddx.so.4+jit@7f84ae81d000", Kind::Compiled),
            function("other+jit@none", Kind::Compiled),
            function("native+jit@7f", Kind::Native),
        ];
        let note = "compiled functions of libddx.so.4 have addresses for names: its LLVM has neither symbols nor RTTI, \
            or it loads cached code itself";
        assert_eq!(note_nameless_functions(&functions).as_deref(), Some(note));
        assert_eq!(note_nameless_functions(&functions[2..]), None);
    }
}
