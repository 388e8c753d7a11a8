//! What helps: at most three sentences, most seconds first.

use std::collections::{BTreeMap, BTreeSet};

use super::gil::CompiledHolder;
use super::path::{Callback, Step};
use super::samples::{CALLING, COLLECTING, Group, INTERPRETER, Samples, WAITING_FOR_GIL};
use crate::file_names::FileNames;
use crate::loops::{Loop, SMALL_PARALLEL};
use crate::profile::activity::Activity;
use crate::profile::{Count, Profile, is_pool_library};
use crate::recording::compilations::{Compilation, Why};
use crate::symbols::Symbols;
use crate::words::plural;

/// Sentence that says what to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Help {
    /// Time of what the sentence names; for a loop, the time that the smallest promised gain saves.
    pub count: Count,
    /// Stable id of the rule.
    pub rule: &'static str,
    /// Path and line that the sentence is about.
    pub position: Option<(String, u32)>,
    /// Sentence.
    pub text: String,
}

/// Rule for threads that run one at a time.
const SERIAL_THREADS: &str = "serial-threads";
/// Maximum number of sentences.
const MAX_SENTENCES: usize = 3;
/// Minimum share of [`Help::count`].
const MIN_PERCENT: f64 = 3.0;
/// Minimum number of samples of [`Help::count`]: the time of fewer is off by a factor of two too often.
const MIN_SAMPLES: u64 = 4;
/// Minimum share of threads that wait for each other, of calls, of garbage collection, and of the GIL.
const MIN_OVERHEAD_PERCENT: f64 = 10.0;
/// Minimum share of compiled functions, and of Python, in the time in which threads wait for a known holder of the GIL.
const MIN_COMPILED_HOLDER_PERCENT: f64 = 10.0;
const MIN_PYTHON_HOLDER_PERCENT: f64 = 50.0;
/// Minimum number of combinations of argument types that are too many.
const MIN_SIGNATURES: usize = 5;
/// Minimum share of a package in the time of its calls of the user's Python.
const MIN_CALLER_PERCENT: f64 = 30.0;
/// Minimum share of the user's Python in the time of such a line.
const MIN_CALLBACK_PERCENT: f64 = 20.0;
/// Minimum share of a compiled function, which needs less time than its calls.
const MIN_COMPILED_CALLBACK_PERCENT: f64 = 10.0;
/// Minimum share of the interpreter in a line that it executes value by value.
const MIN_INTERPRETER_PERCENT: f64 = 10.0;

pub(super) struct HelpEvidence<'a> {
    pub(super) symbols: &'a Symbols,
    pub(super) profile: &'a Profile,
    pub(super) compilations: &'a [Compilation],
    pub(super) loops: &'a [Loop],
    pub(super) samples: &'a Samples,
    pub(super) all: Count,
    /// Names of the files, as the rows show them.
    pub(super) names: FileNames<'a>,
    pub(super) is_jit_disabled: bool,
    /// True if the threads waited longer for a processor than they ran.
    pub(super) is_busy: bool,
}

/// Returns the sentences.
pub(super) fn what_helps(evidence: &HelpEvidence<'_>) -> Vec<Help> {
    let mut helps = compilation_help(evidence);
    helps.extend(loop_help(evidence));
    helps.extend(pool_help(evidence));
    helps.extend(call_help(evidence));
    helps.extend(callback_help(evidence));
    helps.extend(serial_help(evidence));
    helps.extend(signature_help(evidence));
    helps.extend(interpreted_help(evidence));
    helps.extend(collection_help(evidence));
    helps.extend(gil_help(evidence));
    helps.retain(|help| help.count.percent_of(evidence.all) >= MIN_PERCENT && help.count.samples >= MIN_SAMPLES);
    // Threads may also take turns for other reasons than the GIL.
    let is_uncertain = |help: &Help| help.rule == SERIAL_THREADS;
    helps.sort_by(|a, b| {
        let by_count = b.count.cmp(&a.count).then_with(|| a.text.cmp(&b.text));
        is_uncertain(a).cmp(&is_uncertain(b)).then(by_count)
    });
    helps.truncate(MAX_SENTENCES);
    helps
}

/// Compilations with one reason, of one owner.
#[derive(Default)]
struct Compiled<'a> {
    count: Count,
    functions: BTreeMap<CompiledFunction<'a>, Count>,
}

/// Name, path and line of a function.
type CompiledFunction<'a> = (String, &'a str, u32);

fn compiled_function(row: &Compilation) -> CompiledFunction<'_> {
    (row.name(), &row.file, row.line)
}

fn compilation_help(evidence: &HelpEvidence<'_>) -> Vec<Help> {
    let owners = evidence.profile.activities.owners();
    let mut by_reason: BTreeMap<(&str, Option<&str>), (Why, Compiled<'_>)> = BTreeMap::new();
    for (row, count) in sampled_compilations(evidence).filter(|(row, _)| !row.failed) {
        let is_choice = matches!(row.why, Why::NotCached | Why::Closure | Why::Jitclass);
        let owner = owners.package(&row.file).filter(|_| is_choice);
        // Its user cannot change why a package does not cache a function.
        let why = match row.why {
            why if why.is_stored() => Why::NewEntry,
            _ if owner.is_some() => Why::NotCached,
            why => why,
        };
        let (_, compiled) = by_reason.entry((why.words(), owner)).or_insert_with(|| (why, Compiled::default()));
        compiled.count += count;
        *compiled.functions.entry(compiled_function(row)).or_default() += count;
    }
    by_reason
        .into_iter()
        .filter_map(|((_, owner), (why, compiled))| {
            let ((name, path, line), _) = compiled.functions.iter().max_by_key(|(_, count)| **count)?;
            let name = short_name(name);
            let count = compiled.functions.len();
            let and_more = if count > 1 { format!(" and {} more", count - 1) } else { String::new() };
            let (verb, it) = if count > 1 { ("compile", "them") } else { ("compiles", "it") };
            let position = format!("{}:{line}", evidence.names.name(path));
            let again = format!("{name} ({position}){and_more} {verb} in every run");
            let (rule, text) = match (why, owner) {
                (_, Some(package)) => (
                    "package-not-cached",
                    format!(
                        "{name}{and_more} of {package} {verb} in every run: {package} does not cache {it}; call {it} \
                         once before you measure"
                    ),
                ),
                (Why::NotCached, None) => ("not-cached", format!("{again}: cache=True keeps the code")),
                (Why::Closure, None) => (
                    "closure-not-cached",
                    format!(
                        "{again}: cache=True does not work for a closure over a compiled function; define it at \
                         module level"
                    ),
                ),
                (Why::Jitclass, None) => (
                    "jitclass-not-cached",
                    format!("{again}: a jitclass cannot be cached; functions on arrays or tuples can, with cache=True"),
                ),
                (Why::Generated, _) => (
                    "generated-not-cached",
                    format!(
                        "{again}: source from exec() or standard input cannot be cached; write it to a module, with \
                         cache=True"
                    ),
                ),
                (Why::NewEntry, _) => {
                    let verb = if count > 1 { "come" } else { "comes" };
                    ("cached-next-time", format!("{name} ({position}){and_more} {verb} from the cache in the next run"))
                }
                (why, _) if why.is_repeated() && why != Why::Wrapper => {
                    ("not-cached", format!("{again}: {}", why.words()))
                }
                _ => return None,
            };
            Some(Help { count: compiled.count, rule, position: Some(((*path).to_owned(), *line)), text })
        })
        .collect()
}

/// Returns the compilations that have samples.
fn sampled_compilations<'a>(evidence: &'a HelpEvidence<'_>) -> impl Iterator<Item = (&'a Compilation, Count)> {
    let groups = evidence.samples.groups.iter();
    groups.filter_map(|group| Some((evidence.compilations.get(group.compilation? as usize)?, group.count)))
}

/// Returns the user's function that is compiled for many combinations of argument types. All but one could be saved.
fn signature_help(evidence: &HelpEvidence<'_>) -> Option<Help> {
    let mut functions: BTreeMap<CompiledFunction<'_>, (BTreeSet<&str>, Count)> = BTreeMap::new();
    for row in evidence.compilations.iter().filter(|row| row.is_outermost() && !row.failed) {
        functions.entry(compiled_function(row)).or_default().0.insert(&row.signature);
    }
    for (row, count) in sampled_compilations(evidence).filter(|(row, _)| !row.failed) {
        functions.entry(compiled_function(row)).or_default().1 += count;
    }
    let owners = evidence.profile.activities.owners();
    let is_of_user = |path: &str| owners.package(path).is_none();
    let many = functions
        .into_iter()
        .filter(|((_, path, _), (signatures, _))| signatures.len() >= MIN_SIGNATURES && is_of_user(path));
    let ((name, path, line), (signatures, count)) = many.max_by_key(|(_, (_, count))| *count)?;
    let saved = |amount: u64| amount - amount / signatures.len() as u64;
    Some(Help {
        count: Count { weight: saved(count.weight), samples: saved(count.samples) },
        rule: "many-signatures",
        position: Some((path.to_owned(), line)),
        text: format!(
            "{} ({}:{line}) is compiled for {} combinations of argument types; give its arguments the same types in \
             each call: arrays instead of tuples, one dtype, one layout",
            short_name(&name),
            evidence.names.name(path),
            signatures.len()
        ),
    })
}

/// Time of a line of Python.
#[derive(Default)]
struct LineTime {
    /// Time in the interpreter, without that of `c_work`.
    interpreter: Count,
    /// Time in functions of the interpreter whose work compiled code does not do faster, such as sorting.
    c_work: Count,
    /// Time in NumPy, which the interpreter may call for single values.
    numpy: Count,
    /// All time but that of calls of compiled functions.
    all: Count,
}

/// Lines of a function that run in Python's interpreter.
#[derive(Default)]
struct InterpretedFunction {
    /// Number of each line, and its time.
    lines: Vec<(u32, Count)>,
    time: Count,
}

/// Returns the functions that cost much in Python's interpreter, by row and source, longest first. NumPy's operations
/// on single values belong to that. Lines that mostly work on strings or files do not count, nor do lines with nearly all of
/// their time in C functions.
fn interpreted_functions(samples: &Samples, all: Count) -> Vec<((u32, u32), InterpretedFunction)> {
    let mut lines: BTreeMap<(u32, u32, u32), LineTime> = BTreeMap::new();
    for group in samples.groups.iter().filter(|group| group.activity == Activity::Interpreted) {
        let Some(step) = group.steps.last().filter(|step| !step.is_compiled) else { continue };
        let line = lines.entry((step.row, step.source, step.line)).or_default();
        match samples.words[group.word as usize].as_str() {
            CALLING => continue,
            INTERPRETER if group.is_c_work => line.c_work += group.count,
            INTERPRETER => line.interpreter += group.count,
            "numpy" => line.numpy += group.count,
            _ => {}
        }
        line.all += group.count;
    }
    let mut functions: BTreeMap<(u32, u32), InterpretedFunction> = BTreeMap::new();
    for ((row, source, line), LineTime { interpreter, c_work, numpy, all }) in lines {
        if interpreter.percent_of(all) >= MIN_INTERPRETER_PERCENT && interpreter >= c_work {
            let function = functions.entry((row, source)).or_default();
            let time: Count = [interpreter, c_work, numpy].iter().sum();
            function.lines.push((line, time));
            function.time += time;
        }
    }
    let has_much = |(_, function): &(_, InterpretedFunction)| function.time.percent_of(all) >= MIN_OVERHEAD_PERCENT;
    let mut functions: Vec<_> = functions.into_iter().filter(has_much).collect();
    functions.sort_by_key(|(_, function)| std::cmp::Reverse(function.time));
    functions
}

/// Returns the user's function that costs most in Python's interpreter.
fn interpreted_help(evidence: &HelpEvidence<'_>) -> Option<Help> {
    let functions = interpreted_functions(evidence.samples, evidence.all);
    let ((row, source), InterpretedFunction { lines, .. }) = functions.first()?;
    let (first, last) = (lines.first()?.0, lines.last()?.0);
    let hottest = lines.iter().max_by_key(|(_, count)| *count)?.0;
    let path = &evidence.symbols.sources[*source as usize];
    let numbers = if first == last { first.to_string() } else { format!("{first}-{last}") };
    let range = format!("{}:{numbers}", evidence.names.name(path));
    let name = evidence.profile.functions.get(*row as usize).map(|function| short_name(&function.name));
    let name_and_range = match name {
        Some(name) if !name.contains('<') => format!("{name} ({range})"),
        _ => range,
    };
    let and_more = if functions.len() > 1 { format!(" and {} more", functions.len() - 1) } else { String::new() };
    let verb = if functions.len() > 1 { "run" } else { "runs" };
    let change = if evidence.is_jit_disabled {
        "NUMBA_DISABLE_JIT is set, so nothing is compiled"
    } else {
        "moved into an @njit function, loops over numbers and arrays are compiled"
    };
    Some(Help {
        count: functions.iter().map(|(_, function)| function.time).sum(),
        rule: "interpreted",
        position: Some((path.clone(), hottest)),
        text: format!("{name_and_range}{and_more} {verb} in Python's interpreter; {change}"),
    })
}

/// Returns the advice for loops. Of loops that overlap, only the hottest is mentioned.
fn loop_help(evidence: &HelpEvidence<'_>) -> Vec<Help> {
    let mut helps: Vec<Help> = Vec::new();
    let mut mentioned: Vec<&Loop> = Vec::new();
    for hot_loop in evidence.loops {
        let Some((advice, saved)) = hot_loop.saved() else { continue };
        let overlaps = |other: &&Loop| {
            other.loop_path == hot_loop.loop_path && other.first <= hot_loop.last && hot_loop.first <= other.last
        };
        // `pool_help` names the call.
        if advice.rule == SMALL_PARALLEL || mentioned.iter().any(overlaps) {
            continue;
        }
        mentioned.push(hot_loop);
        let lines = match hot_loop.last {
            last if last == hot_loop.first => last.to_string(),
            last => format!("{}-{last}", hot_loop.first),
        };
        helps.push(Help {
            count: saved,
            rule: advice.rule,
            position: Some((hot_loop.path.clone(), hot_loop.line)),
            text: format!("{}:{lines}: {}", evidence.names.name(&hot_loop.loop_path), advice.text()),
        });
    }
    helps
}

/// Line: index into [`Symbols::sources`], and number.
type Place = (u32, u32);

/// Returns a group's innermost line, and its innermost interpreted line.
fn positions(group: &Group) -> Option<(Place, Option<Place>)> {
    let last = group.steps.last()?;
    let python = group.steps.iter().rev().find(|step| !step.is_compiled);
    Some(((last.source, last.line), python.map(|step| (step.source, step.line))))
}

/// Parallel loop: its line, the interpreted line that called it, and the word for its library.
type ParallelLoop = (Place, Option<Place>, u32);

/// Returns the time of each parallel loop in the library that runs it. Threads that run no code of a loop work for
/// the loops at the same lines of Python: their time is shared in proportion to the time of the loops' own threads.
fn pool_loops(samples: &Samples) -> BTreeMap<ParallelLoop, Count> {
    let mut below: BTreeMap<Vec<Place>, (BTreeMap<ParallelLoop, Count>, Count)> = BTreeMap::new();
    let is_pool = |group: &&Group| is_pool_library(&samples.words[group.word as usize]);
    for group in samples.groups.iter().filter(is_pool) {
        let Some((line, caller)) = positions(group) else { continue };
        let python = group.steps.iter().filter(|step| !step.is_compiled).map(|step| (step.source, step.line));
        let (loops, workers) = below.entry(python.collect()).or_default();
        let is_compiled = group.steps.last().is_some_and(|step| step.is_compiled);
        *(if is_compiled { loops.entry((line, caller, group.word)).or_default() } else { workers }) += group.count;
    }
    let mut all: BTreeMap<ParallelLoop, Count> = BTreeMap::new();
    for (loops, workers) in below.into_values() {
        let own: Count = loops.values().sum();
        for (parallel_loop, count) in loops {
            let part = |amount: u64| (amount as f64 * count.percent_of(own) / 100.0).round() as u64;
            let of_workers = Count { weight: part(workers.weight), samples: part(workers.samples) };
            *all.entry(parallel_loop).or_default() += [count, of_workers].iter().sum::<Count>();
        }
    }
    all
}

/// Returns the parallel loop whose threads mostly wait for each other.
fn pool_help(evidence: &HelpEvidence<'_>) -> Option<Help> {
    let loops = pool_loops(evidence.samples);
    if loops.values().sum::<Count>().percent_of(evidence.all) < MIN_OVERHEAD_PERCENT {
        return None;
    }
    let ((line, caller, word), count) = loops.into_iter().max_by_key(|(_, count)| *count)?;
    let library = &evidence.samples.words[word as usize];
    let path = &evidence.symbols.sources[line.0 as usize];
    let package = evidence.profile.activities.package_of_source(line.0);
    let of_package = package.map(|package| format!(" of {package}")).unwrap_or_default();
    let called = caller.map(|(source, line)| {
        format!(", called at {}:{line}", evidence.names.name(&evidence.symbols.sources[source as usize]))
    });
    let option = if package.is_none() { ", or leave out parallel=True" } else { "" };
    let doubt = if evidence.is_busy { ", and on this busy machine for a processor" } else { "" };
    Some(Help {
        count,
        rule: "parallel-too-small",
        position: Some((path.clone(), line.1)),
        text: format!(
            "{}:{}{of_package}{}: a parallel loop with too little work, whose threads wait for each other \
             ({library}){doubt}; do more in each call{option}",
            evidence.names.name(path),
            line.1,
            called.unwrap_or_default(),
        ),
    })
}

/// Returns the line that calls compiled functions so often that the calls cost more than the functions.
fn call_help(evidence: &HelpEvidence<'_>) -> Option<Help> {
    let (count, lines) = sum_of_word(evidence, CALLING, |group| Some(positions(group)?.0));
    if count.percent_of(evidence.all) < MIN_OVERHEAD_PERCENT {
        return None;
    }
    let advice = "many short calls of compiled functions; move the loop around the call into a compiled function";
    Some(Help { count, ..help_of_lines(evidence, &lines, "many-calls", advice)? })
}

/// Returns the line whose time pandas spends on calls of a function of the user.
fn callback_help(evidence: &HelpEvidence<'_>) -> Option<Help> {
    const PACKAGE: &str = "pandas";
    let activities = &evidence.profile.activities;
    let is_of_pandas = |function: u32| activities.library_of_function(function as usize) == Some(PACKAGE);
    let is_of_user = |step: &Step| activities.package_of_source(step.source).is_none();
    let mut lines: BTreeMap<Place, (Count, Step)> = BTreeMap::new();
    for group in evidence.samples.groups.iter().filter(|group| group.compilation.is_none()) {
        let Some(Callback { caller, callee, function }) = group.callback else { continue };
        if is_of_pandas(function) && is_of_user(&callee) {
            lines.entry((caller.source, caller.line)).or_insert((Count::default(), callee)).0 += group.count;
        }
    }
    let (_, own) = sum_of_word(evidence, PACKAGE, |group| {
        group.callback.is_none().then_some(())?;
        Some(positions(group)?.0)
    });
    let calls = lines.into_iter().filter_map(|(place, (count, callee))| {
        let own = own.get(&place).copied().unwrap_or_default();
        let all = [count, own].into_iter().sum::<Count>();
        // Of a compiled function, its calls take the time that can be saved.
        let (saved, min_percent) = match callee.is_compiled {
            true => (own, MIN_COMPILED_CALLBACK_PERCENT),
            false => (count, MIN_CALLBACK_PERCENT),
        };
        let has_many_calls = all.percent_of(evidence.all) >= MIN_OVERHEAD_PERCENT
            && own.percent_of(all) >= MIN_CALLER_PERCENT
            && count.percent_of(all) >= min_percent;
        has_many_calls.then_some((place, callee, saved))
    });
    let ((source, line), callee, count) = calls.max_by_key(|(.., saved)| *saved)?;
    let path = &evidence.symbols.sources[source as usize];
    let function = evidence.profile.functions.get(callee.row as usize);
    let name = function.map(|function| short_name(&function.name)).filter(|name| !name.contains('<'));
    let (how, cure) = match callee.is_compiled {
        true => (
            ", which is compiled, again and again",
            "engine=\"numba\" where the method has it, or an @njit loop over to_numpy(), calls it from compiled code",
        ),
        false => (
            " in Python again and again",
            "operations on whole columns, or an @njit function on to_numpy(), need no calls",
        ),
    };
    Some(Help {
        count,
        rule: "pandas-calls",
        position: Some((path.clone(), line)),
        text: format!(
            "{}:{line}: pandas calls {} ({}:{}){how}; {cure}",
            evidence.names.name(path),
            name.unwrap_or("a function"),
            evidence.names.name(&evidence.symbols.sources[callee.source as usize]),
            callee.line
        ),
    })
}

/// Returns the line that calls compiled functions in threads that run one at a time.
fn serial_help(evidence: &HelpEvidence<'_>) -> Option<Help> {
    let serial = evidence.samples.serial.as_ref()?;
    let path = &evidence.symbols.sources[serial.caller.source as usize];
    let line = serial.caller.line;
    Some(Help {
        count: serial.count,
        rule: SERIAL_THREADS,
        position: Some((path.clone(), line)),
        text: format!(
            "{}:{line}: {} threads run compiled functions one at a time; if they keep the GIL, nogil=True lets them \
             run at the same time",
            evidence.names.name(path),
            serial.threads
        ),
    })
}

/// Returns the advice for several lines at the longest of them. Lines of little time are not counted.
fn help_of_lines(
    evidence: &HelpEvidence<'_>,
    lines: &BTreeMap<Place, Count>,
    rule: &'static str,
    advice: &str,
) -> Option<Help> {
    let more = lines.values().filter(|count| count.percent_of(evidence.all) >= 2.0).count().saturating_sub(1);
    let and_more = if more > 0 { format!(" and {}", plural(more, "more line")) } else { String::new() };
    let (&(source, line), _) = lines.iter().max_by_key(|(_, count)| **count)?;
    let path = &evidence.symbols.sources[source as usize];
    Some(Help {
        count: lines.values().sum(),
        rule,
        position: Some((path.clone(), line)),
        text: format!("{}:{line}{and_more}: {advice}", evidence.names.name(path)),
    })
}

/// Returns the line of an overhead that a setting can change. Garbage collections that a program calls for stay.
fn overhead_line(group: &Group) -> Option<Place> {
    Some(positions(group).filter(|_| !group.requests_collection)?.0)
}

/// Returns the line in which most garbage is collected.
fn collection_help(evidence: &HelpEvidence<'_>) -> Option<Help> {
    let lines = overhead_lines(evidence, COLLECTING)?;
    let advice = "garbage collection: gc.freeze() after the data is loaded, or gc.disable() while it is built";
    help_of_lines(evidence, &lines, "garbage-collection", advice)
}

/// Returns the compiled function and the line of Python that hold the GIL most while other threads wait for it.
fn gil_help(evidence: &HelpEvidence<'_>) -> Vec<Help> {
    if overhead_lines(evidence, WAITING_FOR_GIL).is_none() {
        return Vec::new();
    }
    let holders = &evidence.samples.gil_holders;
    let help = |step: Step, count, rule, function: &str, cure| {
        let path = &evidence.symbols.sources[step.source as usize];
        let position = format!("{}:{}", evidence.names.name(path), step.line);
        let text = format!("{position}: {function} holds the GIL, and other threads wait for it: {cure}");
        Help { count, rule, position: Some((path.clone(), step.line)), text }
    };
    let compiled: Count = holders.compiled.iter().map(|holder| holder.count).sum();
    let function = holders.compiled.iter().max_by_key(|holder| holder.count);
    let compiled_help = function.map(|CompiledHolder { function, caller, .. }| {
        let name = evidence.profile.functions.get(*function as usize).map(|function| short_name(&function.name));
        let name = name.unwrap_or("a compiled function");
        help(*caller, compiled, "gil", name, "nogil=True lets them run at the same time")
    });
    let python: Count = holders.python.iter().map(|(_, count)| count).sum();
    let line = holders.python.iter().max_by_key(|(_, count)| *count);
    let python_help = line.map(|(step, _)| {
        help(*step, python, "gil-python", "this Python code", "nogil=True does not help here, separate processes do")
    });
    let has_share = |min: f64| move |help: &Help| help.count.percent_of(holders.count) >= min;
    let compiled_help = compiled_help.filter(has_share(MIN_COMPILED_HOLDER_PERCENT));
    compiled_help.into_iter().chain(python_help.filter(has_share(MIN_PYTHON_HOLDER_PERCENT))).collect()
}

/// Returns the time of each line in overhead such as garbage collection, if it is much. The user cannot change what an
/// import does.
fn overhead_lines(evidence: &HelpEvidence<'_>, word: &str) -> Option<BTreeMap<Place, Count>> {
    let (_, imports) = sum_of_word(evidence, Activity::Importing.words(), |group| Some(positions(group)?.0));
    let (_, mut lines) = sum_of_word(evidence, word, overhead_line);
    lines.retain(|line, count| imports.get(line).is_none_or(|imports| *imports < *count));
    let count: Count = lines.values().sum();
    (count.percent_of(evidence.all) >= MIN_OVERHEAD_PERCENT).then_some(lines)
}

/// Adds up the groups of a word: all of them, and by key.
fn sum_of_word<K: Ord + Copy>(
    evidence: &HelpEvidence<'_>,
    word: &str,
    key: impl Fn(&Group) -> Option<K>,
) -> (Count, BTreeMap<K, Count>) {
    let (mut all, mut by_key) = (Count::default(), BTreeMap::new());
    let has_word = |group: &&Group| evidence.samples.words[group.word as usize] == word;
    for group in evidence.samples.groups.iter().filter(has_word) {
        all += group.count;
        if let Some(key) = key(group) {
            *by_key.entry(key).or_default() += group.count;
        }
    }
    (all, by_key)
}

/// Returns the last component of a qualified name; of a special method, the last two: `Book.__init__`.
pub(super) fn short_name(name: &str) -> &str {
    let in_module = &name[module_end(name)..];
    let qualified = &in_module[..in_module.find('(').unwrap_or(in_module.len())];
    let last = qualified.rsplit('.').next().unwrap_or_default();
    let component_count = if last.starts_with("__") { 2 } else { 1 };
    let start = qualified.rmatch_indices('.').nth(component_count - 1).map_or(0, |(dot, _)| dot + 1);
    Some(&qualified[start..]).filter(|short| !short.is_empty()).unwrap_or(name)
}

/// Returns the end of a module whose name has parentheses, as that of a file `bench (1).py`; 0 for others.
fn module_end(name: &str) -> usize {
    let (mut depth, mut end) = (0_usize, 0);
    for (index, letter) in name.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            '.' if depth == 0 && name[..index].ends_with(')') => end = index + 1,
            _ => {}
        }
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_have_no_module_and_no_types() {
        for (name, short) in [
            ("prog.Book.price(array(float64, 1d, C), Literal(int).x) [v1]", "price"),
            ("prog.Book.__init__(int64)", "Book.__init__"),
            ("bench (1).smooth", "smooth"),
            ("bench (1).smooth(array(float64, 1d, C))", "smooth"),
            ("ns::f(int)", "ns::f"),
        ] {
            assert_eq!(short_name(name), short);
        }
    }

    fn count(samples: u64) -> Count {
        Count { weight: 1000 * samples, samples }
    }

    fn step(line: u32, is_compiled: bool) -> Step {
        Step { source: 0, line, row: line, is_compiled, is_module: false }
    }

    fn group(steps: Vec<Step>, activity: Activity, word: u32, samples: u64) -> Group {
        Group {
            stack: 0,
            steps,
            compilation: None,
            activity,
            word,
            call: None,
            callback: None,
            is_c_work: false,
            requests_collection: false,
            count: count(samples),
        }
    }

    /// No setting ends a collection that the program calls for.
    #[test]
    fn collections_that_a_program_calls_for_are_no_overhead() {
        let automatic = group(vec![step(24, false)], Activity::Collecting, 0, 1);
        let requested = Group { requests_collection: true, ..automatic.clone() };
        assert_eq!([&automatic, &requested].map(overhead_line), [Some((0, 24)), None]);
    }

    #[test]
    fn only_the_interpreters_time_is_interpreted() {
        let words: Vec<String> = [INTERPRETER, CALLING, "libsqlite3", "numpy"].map(str::to_owned).to_vec();
        let line = |line, word, samples| group(vec![step(line, false)], Activity::Interpreted, word, samples);
        let c_work = Group { is_c_work: true, ..line(10, 0, 5) };
        let groups = vec![line(10, 0, 30), c_work, line(10, 1, 500), line(10, 2, 40), line(20, 0, 1), line(20, 2, 90)];
        let samples = Samples { groups, words: words.clone(), ..Samples::default() };
        let functions = interpreted_functions(&samples, count(300));
        let lines: Vec<_> = functions.iter().flat_map(|(_, function)| &function.lines).collect();
        assert_eq!(lines, [&(10, count(35))], "neither the calls nor the library's time");
        assert_eq!(interpreted_functions(&samples, count(400)).len(), 0, "9 % of all");
        // NumPy works on single values in such a loop.
        let samples = Samples { groups: vec![line(10, 0, 20), line(10, 3, 80)], words, ..Samples::default() };
        assert_eq!(interpreted_functions(&samples, count(400))[0].1.time, count(100));
    }

    /// Two parallel loops are called through one line, which two other lines call.
    #[test]
    fn workers_count_for_the_loop_that_was_called_as_they_worked() {
        let group = |lines: &[u32], parallel_loop: Option<u32>, samples| {
            let python = lines.iter().map(|line| step(*line, false));
            let steps = python.chain(parallel_loop.map(|line| step(line, true))).collect();
            group(steps, Activity::Compiled, 0, samples)
        };
        let groups = vec![
            group(&[24, 19], Some(8), 330),
            group(&[24, 19], None, 340),
            group(&[25, 19], Some(14), 30),
            group(&[25, 19], Some(16), 90),
            group(&[25, 19], None, 80),
            group(&[26], None, 7),
        ];
        let samples = Samples { groups, words: vec!["libgomp".to_owned()], ..Samples::default() };
        let loops: Vec<(u32, Count)> = pool_loops(&samples)
            .into_iter()
            .map(|((line, caller, _), count)| {
                assert_eq!(caller, Some((0, 19)));
                (line.1, count)
            })
            .collect();
        assert_eq!(loops, [(8, count(670)), (14, count(50)), (16, count(150))], "none for the line without a loop");
    }
}
