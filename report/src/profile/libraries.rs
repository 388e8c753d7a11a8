//! What is not the user's, folded: a row for each library, one for Numba's compiler and one for the import system.

use rustc_hash::FxHashMap;

use super::{Count, Shares};
use crate::activity::{Activities, Activity, StackActivity};
use crate::symbols::{Frame, Symbols};

/// A library, with what was compiled of its code and what was interpreted.
#[derive(Clone, Debug)]
pub struct LibraryRow {
    /// `numpy`, `Numba's compiler`.
    pub name: String,
    /// Its own code, with the C functions that it calls; and all that it calls. Of a library of C without a package,
    /// of the compiler and of the import system, both are the same.
    pub shares: Shares,
    /// Its functions, indexes into [`functions`](super::Profile::functions), the heaviest first; none of the compiler.
    pub functions: Vec<(u32, Count)>,
}

/// What a row is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Fold {
    Compiler,
    Imports,
    /// Index into [`Activities::names`].
    Library(u32),
}

/// While they are added up.
#[derive(Debug, Default)]
pub(super) struct Libraries {
    shares: FxHashMap<Fold, Shares>,
    functions: FxHashMap<(u32, u32), Count>,
    seen: Vec<u32>,
}

impl Libraries {
    /// A stack, the innermost frame first; `rows` has the row of each function.
    pub(super) fn add<'a>(
        &mut self,
        activities: &Activities,
        done: &StackActivity,
        frames: impl Iterator<Item = &'a Frame>,
        rows: &[u32],
        count: Count,
    ) {
        let owner = match done.activity {
            Activity::Compiling => Some(Fold::Compiler),
            Activity::Importing => Some(Fold::Imports),
            Activity::Library => Some(Fold::Library(done.name)),
            Activity::Compiled => done.package.map(Fold::Library),
            Activity::Interpreted | Activity::Collecting | Activity::Waiting => None,
        };
        if let Some(fold) = owner {
            self.shares.entry(fold).or_default().own += count;
            if let (Fold::Library(name), Some(owner)) = (fold, done.owner) {
                *self.functions.entry((name, rows[owner.function as usize])).or_default() += count;
            }
        }
        self.seen.clear();
        self.seen.extend(frames.filter_map(|frame| activities.package(frame)));
        self.seen.extend(owner.and_then(|fold| match fold {
            Fold::Library(name) => Some(name),
            Fold::Compiler | Fold::Imports => None,
        }));
        self.seen.sort_unstable();
        self.seen.dedup();
        for name in &self.seen {
            self.shares.entry(Fold::Library(*name)).or_default().total += count;
        }
        if let Some(fold @ (Fold::Compiler | Fold::Imports)) = owner {
            self.shares.entry(fold).or_default().total += count;
        }
    }

    pub(super) fn finish(self, activities: &Activities, new_row: &FxHashMap<u32, u32>) -> Vec<LibraryRow> {
        let mut functions: FxHashMap<u32, Vec<(u32, Count)>> = FxHashMap::default();
        for ((name, row), count) in self.functions {
            functions.entry(name).or_default().extend(new_row.get(&row).map(|row| (*row, count)));
        }
        let row = |(fold, shares): (Fold, Shares)| {
            let (name, mut functions) = match fold {
                Fold::Compiler => ("Numba's compiler", Vec::new()),
                Fold::Imports => ("import system", Vec::new()),
                Fold::Library(name) => {
                    (activities.names[name as usize].as_str(), functions.remove(&name).unwrap_or_default())
                }
            };
            functions.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
            LibraryRow { name: name.to_owned(), shares, functions }
        };
        let mut rows: Vec<LibraryRow> = self.shares.into_iter().map(row).collect();
        let order = |row: &LibraryRow| (row.shares.own, row.shares.total);
        rows.sort_by(|a, b| order(b).cmp(&order(a)).then_with(|| a.name.cmp(&b.name)));
        rows
    }
}

/// All frames of a stack.
pub(super) fn frames<'a>(symbols: &'a Symbols, locations: &'a [u32]) -> impl Iterator<Item = &'a Frame> {
    locations.iter().flat_map(|location| symbols.frames(*location))
}
