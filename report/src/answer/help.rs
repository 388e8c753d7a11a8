//! What helps: at most three sentences, most seconds first.

use std::collections::BTreeMap;

use super::samples::{CALLING, COLLECTING, Group, POOL_WORDS, Samples, WAITING_FOR_GIL};
use crate::loops::{Loop, SMALL_PARALLEL};
use crate::profile::{Count, Profile};
use crate::recording::compilations::{Compilation, Why};
use crate::symbols::Symbols;
use crate::words::{plural, source_name};

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

/// Maximum number of sentences.
const MAX_SENTENCES: usize = 3;
/// Minimum share of [`Help::count`].
const MIN_PERCENT: f64 = 3.0;
/// Minimum share of threads that wait for each other, of calls, of garbage collection, and of the GIL.
const MIN_OVERHEAD_PERCENT: f64 = 10.0;

pub(super) struct HelpEvidence<'a> {
    pub(super) symbols: &'a Symbols,
    pub(super) profile: &'a Profile,
    pub(super) compilations: &'a [Compilation],
    pub(super) loops: &'a [Loop],
    pub(super) samples: &'a Samples,
    pub(super) all: Count,
}

/// Returns the sentences.
pub(super) fn what_helps(evidence: &HelpEvidence<'_>) -> Vec<Help> {
    let mut helps = compilation_help(evidence);
    helps.extend(loop_help(evidence));
    helps.extend(pool_help(evidence));
    helps.extend(call_help(evidence));
    helps.extend(overhead_help(evidence));
    helps.retain(|help| help.count.percent_of(evidence.all) >= MIN_PERCENT);
    helps.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.text.cmp(&b.text)));
    helps.truncate(MAX_SENTENCES);
    helps
}

/// Compilations with one reason, of one owner.
#[derive(Default)]
struct Compiled<'a> {
    count: Count,
    functions: BTreeMap<(String, &'a str, u32), Count>,
}

fn compilation_help(evidence: &HelpEvidence<'_>) -> Vec<Help> {
    let owners = evidence.profile.activities.owners();
    let mut by_reason: BTreeMap<(&str, Option<&str>), Compiled<'_>> = BTreeMap::new();
    for group in &evidence.samples.groups {
        let Some(row) = group.compilation.and_then(|index| evidence.compilations.get(index as usize)) else { continue };
        let reason = match row.why {
            Why::NewEntry | Why::NoLines => Why::NewEntry.words(),
            why => why.words(),
        };
        let owner = owners.package(&row.file).filter(|_| reason == Why::NotCached.words());
        let compiled = by_reason.entry((reason, owner)).or_default();
        compiled.count += group.count;
        *compiled.functions.entry((row.name(), &row.file, row.line)).or_default() += group.count;
    }
    by_reason
        .into_iter()
        .filter_map(|((reason, owner), compiled)| {
            let ((name, path, line), _) = compiled.functions.iter().max_by_key(|(_, count)| **count)?;
            let name = short_name(name);
            let count = compiled.functions.len();
            let others = if count > 1 { format!(" and {} more", count - 1) } else { String::new() };
            let (verb, it) = if count > 1 { ("compile", "them") } else { ("compiles", "it") };
            let place = format!("{}:{line}", source_name(path));
            let (rule, text) = match (reason, owner) {
                ("", _) => return None,
                (reason, Some(package)) if reason == Why::NotCached.words() => (
                    "package-not-cached",
                    format!(
                        "{name}{others} of {package} {verb} in every run: {package} does not cache {it}; call {it} \
                         once before you measure"
                    ),
                ),
                (reason, None) if reason == Why::NotCached.words() => {
                    ("not-cached", format!("{name} ({place}){others} {verb} in every run: cache=True keeps the code"))
                }
                (reason, _) if reason == Why::NewEntry.words() => {
                    let verb = if count > 1 { "come" } else { "comes" };
                    ("cached-next-time", format!("{} {verb} from the cache in the next run", plural(count, "function")))
                }
                (reason, _) => ("not-cached", format!("{name} ({place}){others} {verb} in every run: {reason}")),
            };
            Some(Help { count: compiled.count, rule, position: Some(((*path).to_owned(), *line)), text })
        })
        .collect()
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
            text: format!("{}:{lines}: {}", source_name(&hot_loop.loop_path), advice.text()),
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

/// Returns the parallel loop whose threads mostly wait for each other.
fn pool_help(evidence: &HelpEvidence<'_>) -> Option<Help> {
    let (_, compiled) = sum_of_words(evidence, &POOL_WORDS, |group| {
        let (line, caller) = positions(group)?;
        group.steps.last()?.is_compiled.then_some((line, caller))
    });
    let ((line, caller), _) = compiled.into_iter().max_by_key(|(_, count)| *count)?;
    // Threads that run no code of the loop belong to the line that called it.
    let word_below_caller = |group: &Group| positions(group).filter(|(_, other)| *other == caller).map(|_| group.word);
    let (_, by_word) = sum_of_words(evidence, &POOL_WORDS, word_below_caller);
    let count: Count = by_word.values().sum();
    if count.percent_of(evidence.all) < MIN_OVERHEAD_PERCENT {
        return None;
    }
    let word = by_word.into_iter().max_by_key(|(_, count)| *count)?.0;
    let library = &evidence.samples.words[word as usize];
    let path = &evidence.symbols.sources[line.0 as usize];
    let package = evidence.profile.activities.package_of_source(line.0);
    let of_package = package.map(|package| format!(" of {package}")).unwrap_or_default();
    let called = caller.map(|(source, line)| {
        format!(", called at {}:{line}", source_name(&evidence.symbols.sources[source as usize]))
    });
    let option = if package.is_none() { ", or leave out parallel=True" } else { "" };
    Some(Help {
        count,
        rule: "parallel-too-small",
        position: Some((path.clone(), line.1)),
        text: format!(
            "{}:{}{of_package}{}: a parallel loop with too little work, whose threads wait for each other ({library}); \
             do more in each call{option}",
            source_name(path),
            line.1,
            called.unwrap_or_default(),
        ),
    })
}

/// Returns the line that calls compiled functions so often that the calls cost more than the functions.
fn call_help(evidence: &HelpEvidence<'_>) -> Option<Help> {
    let (count, lines) = sum_of_words(evidence, &[CALLING], |group| Some(positions(group)?.0));
    if count.percent_of(evidence.all) < MIN_OVERHEAD_PERCENT {
        return None;
    }
    let more = lines.values().filter(|count| count.percent_of(evidence.all) >= 2.0).count().saturating_sub(1);
    let ((source, line), _) = lines.into_iter().max_by_key(|(_, count)| *count)?;
    let path = &evidence.symbols.sources[source as usize];
    let others = if more > 0 { format!(" and {}", plural(more, "more line")) } else { String::new() };
    Some(Help {
        count,
        rule: "many-calls",
        position: Some((path.clone(), line)),
        text: format!(
            "{}:{line}{others}: many short calls of compiled functions; move the loop around the call into a compiled \
             function",
            source_name(path)
        ),
    })
}

fn overhead_help(evidence: &HelpEvidence<'_>) -> Vec<Help> {
    let rules = [
        (
            COLLECTING,
            "garbage-collection",
            "garbage collection: gc.freeze() after the data is loaded, or gc.disable() while it is built",
        ),
        (WAITING_FOR_GIL, "gil", "threads wait for the GIL: nogil=True lets compiled functions run at the same time"),
    ];
    let help = |(word, rule, text): (&str, &'static str, &str)| {
        let (_, lines) = sum_of_words(evidence, &[word], |group| Some(positions(group)?.0));
        let count: Count = lines.values().sum();
        let ((source, line), _) = lines.into_iter().max_by_key(|(_, count)| *count)?;
        let path = &evidence.symbols.sources[source as usize];
        let text = format!("{}:{line}: {text}", source_name(path));
        (count.percent_of(evidence.all) >= MIN_OVERHEAD_PERCENT).then(|| Help {
            count,
            rule,
            position: Some((path.clone(), line)),
            text,
        })
    };
    rules.into_iter().filter_map(help).collect()
}

/// Adds up the groups that did one of `words`: all of them, and by key.
fn sum_of_words<K: Ord + Copy>(
    evidence: &HelpEvidence<'_>,
    words: &[&str],
    key: impl Fn(&Group) -> Option<K>,
) -> (Count, BTreeMap<K, Count>) {
    let (mut all, mut by_key) = (Count::default(), BTreeMap::new());
    let has_word = |group: &&Group| words.contains(&evidence.samples.words[group.word as usize].as_str());
    for group in evidence.samples.groups.iter().filter(has_word) {
        all += group.count;
        if let Some(key) = key(group) {
            *by_key.entry(key).or_default() += group.count;
        }
    }
    (all, by_key)
}

/// Returns the last component of a qualified name.
pub(super) fn short_name(name: &str) -> &str {
    let end = name.find('(').unwrap_or(name.len());
    name[..end].rsplit('.').next().filter(|name| !name.is_empty()).unwrap_or(name)
}
