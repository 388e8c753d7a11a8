//! Symbolizes places: function, file, line, and inlined calls.

mod elf;
mod files;
mod generated;
mod kernel;
mod line_zero;
mod names;
mod perf_map;
mod source_frame;

use rustc_hash::FxHashMap;
use std::collections::BTreeSet;

pub use files::FileSymbols;
pub(crate) use files::ImageCode;
pub(crate) use names::is_entry;
pub use source_frame::SourceFrame;

use crate::lookup::Lookup;
use crate::recording::{Location, Recording};
use files::Files;
use generated::Named;
use kernel::KernelSymbols;
pub(crate) use perf_map::LARGEST as LARGEST_MAP;
use perf_map::{MapFiles, PerfMap};

/// Whose code a function is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Kind {
    /// Compiled at run time.
    Compiled,
    /// A Python function that the interpreter runs.
    Python,
    /// In a program or library.
    Native,
    /// The kernel's.
    Kernel,
    /// Nothing is known about the address.
    Unknown,
}

/// A function.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Function {
    /// With argument types and number of the specialisation.
    pub name: String,
    /// Without them: the same for all compilations of one function.
    pub base: String,
    /// Whose it is.
    pub kind: Kind,
    /// The last part of its file's path, or `[kernel]`.
    pub module: String,
}

/// One level of a place: a function and the line in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Index into [`Symbols::functions`].
    pub function: u32,
    /// Index into [`Symbols::sources`].
    pub source: Option<u32>,
    /// 0 where the compiler says that no line is meant; none without line table.
    pub line: Option<u32>,
    /// Whether the call that leads here was inlined.
    pub inlined: bool,
    /// Whether the compiler names no line, and this is the one of the instructions around.
    pub approximate: bool,
}

/// The symbols of a recording.
#[derive(Debug, Default)]
pub struct Symbols {
    /// Every function, once.
    pub functions: Vec<Function>,
    /// Every source file, once, as the compiler names it.
    pub sources: Vec<String>,
    /// The hashes that sources had when they were compiled, by path; several if the file was changed in between.
    pub source_hashes: FxHashMap<String, Vec<String>>,
    /// What could not be found.
    pub notes: Vec<String>,
    frames: Vec<Frame>,
    ends: Vec<u32>,
}

impl Symbols {
    /// Looks up every place of a recording.
    pub fn resolve(recording: &Recording, lookup: &Lookup) -> Symbols {
        Symbols::resolve_with(&mut SymbolCache::default(), recording, lookup)
    }

    /// As [`resolve`](Symbols::resolve), with the files that are open already.
    pub fn resolve_with(cache: &mut SymbolCache, recording: &Recording, lookup: &Lookup) -> Symbols {
        cache.prepare(recording, lookup);
        let mut resolver = Resolver::new(cache, lookup, MapFiles::new(recording, lookup));
        for location in &recording.locations {
            resolver.location(location);
            let end = resolver.symbols.frames.len() as u32;
            resolver.symbols.ends.push(end);
        }
        resolver.finish()
    }

    /// What is at a location, the innermost inlined call first. Never empty.
    pub fn frames(&self, location: u32) -> &[Frame] {
        let at = location as usize;
        let begin = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.frames[begin as usize..self.ends[at] as usize]
    }

    /// The function of a frame.
    pub fn function(&self, frame: &Frame) -> &Function {
        &self.functions[frame.function as usize]
    }
}

/// The files of a recording that are open, for one that is looked at again and again while it grows.
#[derive(Default)]
pub struct SymbolCache {
    files: Files,
    /// By origin and process.
    maps: FxHashMap<(u32, u32), PerfMap>,
    kernel: KernelSymbols,
    readable: FxHashMap<(u32, String), String>,
    twins: FxHashMap<(u32, String), String>,
}

impl SymbolCache {
    fn prepare(&mut self, recording: &Recording, lookup: &Lookup) {
        if !self.files.extend(recording, lookup) {
            self.twins.clear();
        }
        self.maps.retain(|_, map| !map.has_grown());
        if lookup.kernel {
            let is_here = matches!(recording.origins.as_slice(), [only] if only.is_here() == Some(true));
            self.kernel = KernelSymbols::of(&recording.facts.kernel, is_here);
        }
    }
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
    symbols: Symbols,
    function_numbers: FxHashMap<Function, u32>,
    source_numbers: FxHashMap<String, u32>,
}

impl<'a> Resolver<'a> {
    fn new(cache: &'a mut SymbolCache, lookup: &'a Lookup, maps: MapFiles<'a>) -> Resolver<'a> {
        Resolver {
            lookup,
            cache,
            maps,
            symbols: Symbols::default(),
            function_numbers: FxHashMap::default(),
            source_numbers: FxHashMap::default(),
        }
    }

    fn location(&mut self, location: &Location) {
        let Some(pid) = location.pid else { return self.kernel_location(location.address) };
        if let Some(place) = location.place
            && self.file_location(place.file, place.offset)
        {
            return;
        }
        let maps = &self.maps;
        let map = self.cache.maps.entry((location.origin, pid)).or_insert_with(|| maps.open(location.origin, pid));
        if let Some(name) = map.find(location.address).map(str::to_owned) {
            return self.mapped_name(&name);
        }
        let module = location.place.map(|place| self.cache.files.name(place.file).to_owned());
        let compiled = location.place.is_some_and(|place| self.cache.files.is_image(place.file));
        match module {
            Some(module) if compiled => self.plain(format!("[{module}]"), Kind::Compiled, module),
            Some(module) if !files::is_anonymous(&module) => self.plain(format!("[{module}]"), Kind::Native, module),
            _ => self.plain("[unknown]".to_owned(), Kind::Unknown, String::new()),
        }
    }

    fn kernel_location(&mut self, address: u64) {
        let name = self.cache.kernel.find(address).unwrap_or("[kernel]").to_owned();
        self.plain(name, Kind::Kernel, "[kernel]".to_owned());
    }

    /// A line of a perf map: compiled code, or a Python function.
    fn mapped_name(&mut self, name: &str) {
        match names::python(name) {
            Some((function, file)) => {
                let source = self.source(file);
                let function = Function {
                    base: function.clone().into_owned(),
                    name: function.into_owned(),
                    kind: Kind::Python,
                    module: file.to_owned(),
                };
                let function = self.function(function);
                self.push(function, Some(source), None);
            }
            None => self.plain(name.to_owned(), Kind::Compiled, "[perf map]".to_owned()),
        }
    }

    /// Whether the file has anything to say.
    fn file_location(&mut self, file: u32, offset: u64) -> bool {
        let Some(found) = self.cache.files.find(file, offset, self.lookup.native_lines) else { return false };
        if found.is_image && self.interpreted(&found) {
            return true;
        }
        let kind = if found.is_image { Kind::Compiled } else { Kind::Native };
        let module = self.cache.files.name(file).to_owned();
        let last = found.frames.len().saturating_sub(1);
        if found.frames.is_empty() {
            let name = found.symbol.map_or_else(|| format!("[{module}]"), |name| self.readable_name(file, &name));
            self.plain(name, kind, module);
            return true;
        }
        let mut named = Vec::with_capacity(found.frames.len());
        for (at, frame) in found.frames.into_iter().enumerate() {
            // The symbol table's name of the function itself is the one for people, unless the compiler made the
            // function up.
            let name = match (&found.symbol, frame.linkage_name) {
                (Some(symbol), Some(name)) if at == last && names::says_more(&name, symbol) => name,
                (Some(symbol), _) if at == last => symbol.clone(),
                (_, Some(name)) => self.twin(file, &name),
                (_, None) => format!("[{module}]"),
            };
            named.push(Named { name: self.readable_name(file, &name), file: frame.file, line: frame.line });
        }
        let frames = generated::without(named);
        let last = frames.len() - 1;
        for (at, Named { name, file, line }) in frames.into_iter().enumerate() {
            let base = names::base(&name).to_owned();
            let function = self.function(Function { name, base, kind, module: module.clone() });
            let source = file.map(|path| self.source(&path));
            let line = line.or(source.map(|_| 0));
            let approximate = found.approximate && at == 0;
            self.symbols.frames.push(Frame { function, source, line, inlined: at != last, approximate });
        }
        true
    }

    /// A function that the interpreter ran, with its line: as `jitlisten record` writes them (`sampler/src/python`).
    fn interpreted(&mut self, found: &files::Found) -> bool {
        let Some((name, file)) = found.symbol.as_deref().and_then(names::python) else { return false };
        let (name, module) = (name.into_owned(), file.to_owned());
        let frame = found.frames.last();
        let source = frame.and_then(|frame| frame.file.as_deref()).unwrap_or(file);
        let source = self.source(source);
        let function = self.function(Function { base: name.clone(), name, kind: Kind::Python, module });
        self.push(function, Some(source), frame.and_then(|frame| frame.line));
        true
    }

    /// What the symbol table calls a function that was inlined.
    fn twin(&mut self, file: u32, name: &str) -> String {
        let key = (file, name.to_owned());
        if let Some(known) = self.cache.twins.get(&key) {
            return known.clone();
        }
        let twin = self.cache.files.twin(file, name).unwrap_or_else(|| name.to_owned());
        self.cache.twins.insert(key, twin.clone());
        twin
    }

    fn readable_name(&mut self, file: u32, name: &str) -> String {
        if let Some(known) = self.cache.readable.get(&(file, name.to_owned())) {
            return known.clone();
        }
        let readable = names::readable(name);
        self.cache.readable.insert((file, name.to_owned()), readable.clone());
        readable
    }

    fn plain(&mut self, name: String, kind: Kind, module: String) {
        let base = names::base(&name).to_owned();
        let function = self.function(Function { name, base, kind, module });
        self.push(function, None, None);
    }

    /// A level that is not from a line table.
    fn push(&mut self, function: u32, source: Option<u32>, line: Option<u32>) {
        self.symbols.frames.push(Frame { function, source, line, inlined: false, approximate: false });
    }

    fn function(&mut self, function: Function) -> u32 {
        let next = self.symbols.functions.len() as u32;
        let functions = &mut self.symbols.functions;
        *self.function_numbers.entry(function).or_insert_with_key(|function| {
            functions.push(function.clone());
            next
        })
    }

    fn source(&mut self, path: &str) -> u32 {
        if let Some(number) = self.source_numbers.get(path) {
            return *number;
        }
        let next = self.symbols.sources.len() as u32;
        self.symbols.sources.push(path.to_owned());
        self.source_numbers.insert(path.to_owned(), next);
        next
    }

    fn finish(self) -> Symbols {
        let mut symbols = self.symbols;
        join_inlined(&mut symbols);
        symbols.notes = self.cache.files.notes();
        symbols.notes.extend(self.maps.notes.into_inner());
        symbols.notes.extend(nameless(&symbols.functions));
        for (path, hash) in self.cache.files.source_hashes() {
            let known = symbols.source_hashes.entry(path.clone()).or_default();
            if !known.contains(hash) {
                known.push(hash.clone());
            }
        }
        symbols
    }
}

/// Libraries whose compiled functions have addresses for names: see `shim/src/trackers/unwind_tables.rs`.
fn nameless(functions: &[Function]) -> Option<String> {
    let library = |function: &Function| {
        let (library, address) = function.name.rsplit_once("+jit@")?;
        let is_it = function.kind == Kind::Compiled && u64::from_str_radix(address, 16).is_ok();
        is_it.then(|| library.to_owned())
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

/// A line table may call an inlined function by its plain name only. Where exactly one function of that name has lines
/// in the same source, they are the same.
fn join_inlined(symbols: &mut Symbols) {
    let last = |base: &str| base.rsplit('.').next().unwrap_or_default().to_owned();
    let mut full: FxHashMap<(String, u32), Vec<u32>> = FxHashMap::default();
    let mut plain: Vec<(u32, u32)> = Vec::new();
    for frame in &symbols.frames {
        let (Some(source), function) = (frame.source, &symbols.functions[frame.function as usize]) else { continue };
        if function.kind != Kind::Compiled {
            continue;
        }
        if function.base.contains('.') {
            full.entry((last(&function.base), source)).or_default().push(frame.function);
        } else if frame.inlined {
            plain.push((frame.function, source));
        }
    }
    plain.sort_unstable();
    plain.dedup();
    for (function, source) in plain {
        let Some(numbers) = full.get(&(symbols.functions[function as usize].base.clone(), source)) else { continue };
        let first = symbols.functions[numbers[0] as usize].base.clone();
        if numbers.iter().all(|number| symbols.functions[*number as usize].base == first) {
            let function = &mut symbols.functions[function as usize];
            function.base = first;
            function.name.push_str(" (inlined)");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_without_names_are_said_once() {
        let function =
            |name: &str, kind| Function { name: name.to_owned(), base: String::new(), kind, module: String::new() };
        let all = [
            function("libddx.so.4+jit@7f84ae81c000", Kind::Compiled),
            function("libddx.so.4+jit@7f84ae81d000", Kind::Compiled),
            function("other+jit@none", Kind::Compiled),
            function("native+jit@7f", Kind::Native),
        ];
        let said = "compiled functions of libddx.so.4 have addresses for names: its LLVM has neither symbols nor RTTI, \
            or it loads cached code itself";
        assert_eq!(nameless(&all).as_deref(), Some(said));
        assert_eq!(nameless(&all[2..]), None);
    }
}
