//! The answer: what the first screen says.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::help::{Help, HelpEvidence, short_name, what_helps};
use super::row::{AnswerRow, RowKind};
use super::rows::{Chosen, choose};
use super::samples::{CALLING, Group, INTERPRETER, Samples};
use super::tree::{Key, Node, NodeId, Tree};
use crate::distinct::Distinct;
use crate::file_names::FileNames;
use crate::lookup::source::SourceText;
use crate::loops::{Advice, Loop};
use crate::profile::activity::Activity;
use crate::profile::hottest::HotLine;
use crate::profile::{Count, Profile, heaviest_first, is_pool_library};
use crate::recording::compilations::{Compilation, Why};
use crate::symbols::Symbols;

/// Where the time goes, by the user's lines, and what to do about it.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// All samples except those of idle threads; 100 % of the other figures.
    pub all: Count,
    /// Time by activity, longest first.
    pub shares: Vec<(String, Count)>,
    /// Tree of the user's lines by total time, widest first; each row is followed by the rows below it.
    pub rows: Vec<AnswerRow>,
    /// Time below no line of the user.
    pub elsewhere: Count,
    /// What that time is, longest first.
    pub elsewhere_parts: Vec<(String, Count)>,
    /// Time by C function that compiled code called, including everything that the function called, longest first.
    pub calls: Vec<(String, Count)>,
    /// Time of the user's Python that was spent in C, by library, longest first.
    pub c_below_python: Vec<(String, Count)>,
    /// Lines with much self time that are not in the tree.
    pub hottest: Vec<HotLine>,
    /// What helps, most seconds first.
    pub helps: Vec<Help>,
}

/// Data that the answer is computed from.
pub(crate) struct Evidence<'a> {
    pub(crate) samples: &'a Samples,
    /// Time that threads were on the run queue; 0 if it is unknown.
    pub(crate) run_queue_ns: u64,
    /// True if Numba compiled nothing in a recorded process, because of `NUMBA_DISABLE_JIT`.
    pub(crate) is_jit_disabled: bool,
    pub(crate) symbols: &'a Symbols,
    pub(crate) profile: &'a Profile,
    /// Sources of [`Profile::files`].
    pub(crate) sources: &'a [SourceText],
    pub(crate) compilations: &'a [Compilation],
    pub(crate) loops: &'a [Loop],
}

/// Minimum share of a hottest line, and the maximum number of these lines.
const MIN_HOT_PERCENT: f64 = 5.0;
const MAX_HOT_LINES: usize = 4;
/// Imports with a smaller share are merged into one row, if there are more than `MAX_IMPORTS`.
pub(super) const MAX_IMPORT_PERCENT: f64 = 15.0;
pub(super) const MAX_IMPORTS: usize = 2;

impl Answer {
    pub(crate) fn new(evidence: &Evidence<'_>) -> Answer {
        Builder::new(evidence).build()
    }

    /// Returns the time below lines of the user for which there was no row.
    pub(crate) fn hidden(&self) -> Count {
        let rows = self.rows.iter().filter(|row| row.depth == 0).map(|row| &row.total);
        let shown: Count = rows.chain([&self.elsewhere]).sum();
        Count {
            weight: self.all.weight.saturating_sub(shown.weight),
            samples: self.all.samples.saturating_sub(shown.samples),
        }
    }
}

/// Function that was compiled: name, file and line.
pub(super) type CompiledFunction<'a> = (String, &'a str, u32);

pub(super) struct Builder<'a> {
    evidence: &'a Evidence<'a>,
    samples: &'a Samples,
    /// Position in [`Profile::files`] of each path.
    files: FxHashMap<&'a str, usize>,
    pub(super) compiled: Distinct<CompiledFunction<'a>>,
    /// Compilations of each compiled function, as indices into the evidence's.
    runs: FxHashMap<u32, Vec<u32>>,
    pub(super) tree: Tree,
    answer: Answer,
}

impl<'a> Builder<'a> {
    pub(super) fn new(evidence: &'a Evidence<'a>) -> Builder<'a> {
        let files = evidence.profile.files.iter().enumerate().map(|(index, file)| (file.path.as_str(), index));
        Builder {
            evidence,
            samples: evidence.samples,
            files: files.collect(),
            compiled: Distinct::default(),
            runs: FxHashMap::default(),
            tree: Tree::new(),
            answer: Answer::default(),
        }
    }

    fn build(mut self) -> Answer {
        let mut shares: BTreeMap<&str, Count> = BTreeMap::new();
        let mut elsewhere: BTreeMap<u32, Count> = BTreeMap::new();
        let mut calls: BTreeMap<u32, Count> = BTreeMap::new();
        let mut c_below_python: BTreeMap<u32, Count> = BTreeMap::new();
        for group in &self.samples.groups {
            self.answer.all += group.count;
            *shares.entry(self.share_word(group)).or_default() += group.count;
            if let Some(call) = group.call {
                *calls.entry(call).or_default() += group.count;
            }
            if group.activity == Activity::Interpreted && self.samples.words[group.word as usize] != INTERPRETER {
                *c_below_python.entry(group.word).or_default() += group.count;
            }
            if self.add_to_tree(group) == 0 {
                self.answer.elsewhere += group.count;
                *elsewhere.entry(group.word).or_default() += group.count;
            }
        }
        self.answer.shares = heaviest_first(shares.into_iter().map(|(word, count)| (word.to_owned(), count)));
        self.answer.elsewhere_parts = self.name_words(&elsewhere);
        self.answer.calls = self.name_words(&calls);
        self.answer.c_below_python = self.name_words(&c_below_python);
        let chosen = choose(&mut self.tree, self.answer.all);
        self.answer.rows = chosen.iter().map(|chosen| self.row(chosen)).collect();
        merge_imports(&mut self.answer);
        self.answer.hottest = self.hottest();
        let helps = what_helps(&HelpEvidence {
            symbols: self.evidence.symbols,
            profile: self.evidence.profile,
            compilations: self.evidence.compilations,
            loops: self.evidence.loops,
            samples: self.samples,
            all: self.answer.all,
            names: FileNames::new(self.answer.rows.iter().map(|row| row.path.as_str())),
            is_jit_disabled: self.evidence.is_jit_disabled,
            is_busy: self.evidence.run_queue_ns > self.answer.all.weight,
        });
        self.answer.helps = helps;
        self.answer
    }

    /// Returns the word for a group in the head: that of the rows, except that all libraries count as one, also those
    /// that a line of the user calls. A library that runs parallel loops keeps its name: main thread and workers spend
    /// the same time there.
    fn share_word(&self, group: &Group) -> &'a str {
        let word = self.samples.words[group.word as usize].as_str();
        let has_name = [CALLING, INTERPRETER].contains(&word) || is_pool_library(word);
        match group.activity {
            Activity::Library | Activity::Interpreted if !has_name => "libraries",
            _ => word,
        }
    }

    /// Adds a group to the tree. Returns its innermost node.
    pub(super) fn add_to_tree(&mut self, group: &Group) -> NodeId {
        let path = self.path(group);
        self.tree.add(&path, group.count, group.word, group.call)
    }

    fn path(&mut self, group: &Group) -> Vec<(Key, u32)> {
        let line = |step: &super::path::Step| {
            (Key::Line { source: step.source, line: step.line, is_compiled: step.is_compiled }, step.row)
        };
        let mut path: Vec<(Key, u32)> = group.steps.iter().map(line).collect();
        if let Some((index, row)) =
            group.compilation.and_then(|index| Some((index, self.evidence.compilations.get(index as usize)?)))
        {
            let function = self.compiled.number((row.name(), &row.file, row.line));
            let runs = self.runs.entry(function).or_default();
            if !runs.contains(&index) {
                runs.push(index);
            }
            path.push((Key::Compilation(function), u32::MAX));
        }
        path
    }

    fn name_words(&self, parts: &BTreeMap<u32, Count>) -> Vec<(String, Count)> {
        heaviest_first(parts.iter().map(|(word, count)| (self.samples.words[*word as usize].clone(), *count)))
    }

    fn row(&self, chosen: &Chosen) -> AnswerRow {
        let innermost = self.tree.node(chosen.chain[chosen.chain.len() - 1]);
        let outermost = self.tree.node(chosen.chain[0]);
        let mut row = AnswerRow {
            depth: chosen.depth,
            total: outermost.total,
            parts: self.name_words(&innermost.parts),
            calls: self.name_words(&innermost.calls),
            hidden_lines: chosen.hidden_lines,
            compilations: self.count_compilations(innermost),
            ..AnswerRow::default()
        };
        let path = |source: u32| self.evidence.symbols.sources[source as usize].clone();
        let function = self.evidence.profile.functions.get(innermost.row as usize);
        row.function = function.map(|function| function.name.clone()).unwrap_or_default();
        match innermost.key {
            Key::Root => {}
            Key::Line { source, line, is_compiled } => {
                row.kind = if is_compiled { RowKind::Compiled } else { RowKind::Python };
                (row.path, row.line) = (path(source), line);
                row.callers = chosen.chain.iter().filter_map(|node| self.position(*node)).collect();
                row.callers.pop();
                row.source = self.source_of(chosen, &row);
                row.advice = advice_at_lines(self.evidence.loops, &row.path, line..=line).filter(|_| is_compiled);
            }
            Key::Function { source, first, last, is_compiled, .. } => {
                row.kind = RowKind::Function;
                (row.path, row.line, row.more_lines) = (path(source), first, vec![last]);
                row.advice = advice_at_lines(self.evidence.loops, &row.path, first..=last).filter(|_| is_compiled);
                row.hidden_lines = innermost.children.len();
            }
            Key::Compilation(function) => {
                row.kind = RowKind::Compilation;
                let (name, file, line) = &self.compiled.values[function as usize];
                (row.function, row.path, row.line) = (name.clone(), (*file).to_owned(), *line);
                let runs = self.runs.get(&function).map(Vec::as_slice).unwrap_or_default();
                row.compilations = runs.len();
                let why =
                    runs.iter().filter_map(|run| self.evidence.compilations.get(*run as usize)).map(|run| run.why);
                row.again = when_again(why);
            }
        }
        row
    }

    fn position(&self, node: NodeId) -> Option<(String, u32)> {
        match self.tree.node(node).key {
            Key::Line { source, line, .. } => Some((self.evidence.symbols.sources[source as usize].clone(), line)),
            _ => None,
        }
    }

    /// Counts the functions that were compiled directly below a line.
    fn count_compilations(&self, node: &Node) -> usize {
        node.children.iter().filter(|child| matches!(self.tree.node(**child).key, Key::Compilation(_))).count()
    }

    /// Returns the source of merged lines: that of the outermost if all are of one file and the rows below show the
    /// rest, otherwise that of the innermost.
    fn source_of(&self, chosen: &Chosen, row: &AnswerRow) -> String {
        let is_one_file = row.callers.iter().all(|(path, _)| *path == row.path);
        let shows_outermost = is_one_file && chosen.below.percent_of(row.total) >= 50.0;
        let (path, line) = match row.callers.first().filter(|_| shows_outermost) {
            Some((path, line)) => (path, *line),
            None => (&row.path, row.line),
        };
        let file = self.files.get(path.as_str());
        let text = file.and_then(|file| self.evidence.sources.get(*file)?.line(line)).unwrap_or_default();
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Returns hot lines that are in no row.
    fn hottest(&self) -> Vec<HotLine> {
        let is_in_row = |line: &HotLine| {
            let path = self.evidence.profile.files[line.position.0 as usize].path.as_str();
            let number = line.position.1;
            self.answer.rows.iter().any(|row| {
                let last = if row.kind == RowKind::Function { row.more_lines[0] } else { row.line };
                (row.path == path && (row.line..=last).contains(&number))
                    || row.callers.iter().any(|caller| caller.0 == path && caller.1 == number)
            })
        };
        let lines = self.evidence.profile.hottest(usize::MAX).into_iter();
        let is_hot = |line: &HotLine| line.self_count.percent_of(self.answer.all) >= MIN_HOT_PERCENT;
        lines.take_while(is_hot).filter(|line| !is_in_row(line)).take(MAX_HOT_LINES).collect()
    }
}

/// Returns the advice for the hottest loop whose hottest line is among `lines`.
pub(super) fn advice_at_lines(loops: &[Loop], path: &str, lines: std::ops::RangeInclusive<u32>) -> Option<String> {
    loops.iter().filter(|hot_loop| hot_loop.path == path && lines.contains(&hot_loop.line)).find_map(advice_text)
}

/// Returns the advice of a loop that has a change.
pub(super) fn advice_text(hot_loop: &Loop) -> Option<String> {
    hot_loop.advice.iter().find(|advice| advice.change.is_some()).map(Advice::text)
}

/// Returns when the compilations of a function happen.
pub(super) fn when_again(why: impl Iterator<Item = Why>) -> &'static str {
    let (mut is_repeated, mut is_stored) = (false, false);
    for why in why {
        is_repeated |= why.is_repeated();
        is_stored |= why.is_stored();
    }
    match (is_repeated, is_stored) {
        (true, true) => "partly every run",
        (true, false) => "every run",
        (false, true) => "this run",
        (false, false) => "",
    }
}

/// Merges imports with small shares into one row.
fn merge_imports(answer: &mut Answer) {
    let is_import = |rows: &[AnswerRow], index: usize| {
        let row = &rows[index];
        row.depth == 0
            && row.kind == RowKind::Python
            && row.callers.is_empty()
            && ["import ", "from "].iter().any(|word| row.source.starts_with(word))
            && row.total.percent_of(answer.all) < MAX_IMPORT_PERCENT
            && rows.get(index + 1).is_none_or(|next| next.depth == 0)
    };
    let imports: Vec<usize> = (0..answer.rows.len()).filter(|index| is_import(&answer.rows, *index)).collect();
    let Some(first) = imports.first().map(|first| &answer.rows[*first]).filter(|_| imports.len() > MAX_IMPORTS) else {
        return;
    };
    let mut merged = AnswerRow { kind: RowKind::Imports, total: Count::default(), ..first.clone() };
    let mut parts: BTreeMap<String, Count> = BTreeMap::new();
    let mut lines = Vec::new();
    for row in imports.iter().map(|index| &answer.rows[*index]) {
        merged.total += row.total;
        for (word, count) in &row.parts {
            *parts.entry(word.clone()).or_default() += *count;
        }
        if row.path == merged.path {
            lines.push(row.line);
        }
    }
    lines.sort_unstable();
    merged.line = lines.remove(0);
    (merged.more_lines, merged.parts) = (lines, heaviest_first(parts));
    merged.source = format!("{} imports", imports.len());
    let mut index = 0;
    answer.rows.retain(|_| {
        index += 1;
        !imports.contains(&(index - 1))
    });
    let is_wider = |row: &AnswerRow| row.depth == 0 && row.total < merged.total;
    let position = answer.rows.iter().position(is_wider).unwrap_or(answer.rows.len());
    answer.rows.insert(position, merged);
}

/// Returns the name of a function as source code shows it: `smooth()`.
pub(crate) fn call_of(function: &str) -> String {
    match short_name(function) {
        name if name.contains([' ', '<']) => name.to_owned(),
        name => format!("{name}()"),
    }
}
