//! Time outside of the user's code: a row for each library, for each compiler, and for the import system.

use rustc_hash::FxHashMap;

use super::activity::{Activities, Activity, StackActivity};
use super::marks::Marks;
use super::{Count, Shares, heaviest_first};
use crate::symbols::{Frame, Symbols};

/// Library, with the time in its compiled and interpreted code.
#[derive(Clone, Debug)]
pub struct LibraryRow {
    /// Name of the library, such as `numpy`, or `Numba's compiler`.
    pub name: String,
    /// Self is the time in the library's own code and in the C functions that it calls; total also includes everything
    /// else that it calls. Both are equal for C libraries without a package, the compiler and the import system.
    pub shares: Shares,
    /// Functions, hottest first, as indices into [`functions`](super::Profile::functions). Empty for the compiler.
    pub functions: Vec<(u32, Count)>,
}

/// Key of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum RowKey {
    /// Compiler, by the name of its library.
    Compiler(u32),
    FirstUse,
    Loading,
    Imports,
    /// Library, as an index into [`Activities::names`].
    Library(u32),
}

/// Rows under construction.
#[derive(Debug)]
pub(super) struct Libraries {
    shares: FxHashMap<RowKey, Shares>,
    functions: FxHashMap<(u32, u32), Count>,
    /// Libraries of the current stack.
    seen: Marks,
}

impl Libraries {
    /// Returns no rows. `names` is the number of libraries.
    pub(super) fn new(names: usize) -> Libraries {
        Libraries { shares: FxHashMap::default(), functions: FxHashMap::default(), seen: Marks::new(names) }
    }

    /// Adds a stack, innermost frame first. `rows` holds the row of each function.
    pub(super) fn add<'a>(
        &mut self,
        activities: &Activities,
        stack_activity: &StackActivity,
        frames: impl Iterator<Item = &'a Frame>,
        rows: &[u32],
        count: Count,
    ) {
        let row_key = match stack_activity.activity {
            Activity::Compiling => Some(RowKey::Compiler(stack_activity.name)),
            Activity::FirstUse => Some(RowKey::FirstUse),
            Activity::Loading => Some(RowKey::Loading),
            Activity::Importing => Some(RowKey::Imports),
            Activity::Library => Some(RowKey::Library(stack_activity.name)),
            Activity::Compiled => stack_activity.package.map(RowKey::Library),
            Activity::Interpreted | Activity::Collecting | Activity::Ending | Activity::Waiting => None,
        };
        if let Some(key) = row_key {
            self.shares.entry(key).or_default().self_count += count;
            if let (RowKey::Library(name), Some(owner)) = (key, stack_activity.owner) {
                *self.functions.entry((name, rows[owner.function as usize])).or_default() += count;
            }
        }
        self.seen.clear();
        let own_library = row_key.and_then(|key| match key {
            RowKey::Library(name) => Some(name),
            RowKey::Compiler(_) | RowKey::FirstUse | RowKey::Loading | RowKey::Imports => None,
        });
        let libraries = frames.filter_map(|frame| activities.package(frame)).chain(own_library);
        for name in libraries.filter(|name| self.seen.insert(*name)) {
            self.shares.entry(RowKey::Library(name)).or_default().total += count;
        }
        if let Some(key) = row_key.filter(|key| !matches!(key, RowKey::Library(_))) {
            self.shares.entry(key).or_default().total += count;
        }
    }

    pub(super) fn finish(self, activities: &Activities, new_row: &FxHashMap<u32, u32>) -> Vec<LibraryRow> {
        let mut functions: FxHashMap<u32, Vec<(u32, Count)>> = FxHashMap::default();
        for ((name, row), count) in self.functions {
            functions.entry(name).or_default().extend(new_row.get(&row).map(|row| (*row, count)));
        }
        let row = |(key, shares): (RowKey, Shares)| {
            let (name, functions) = match key {
                RowKey::Compiler(name) => (activities.compiler(name), Vec::new()),
                RowKey::FirstUse => (Activity::FirstUse.words().to_owned(), Vec::new()),
                RowKey::Loading => (Activity::Loading.words().to_owned(), Vec::new()),
                RowKey::Imports => ("import system".to_owned(), Vec::new()),
                RowKey::Library(name) => {
                    (activities.names[name as usize].clone(), functions.remove(&name).unwrap_or_default())
                }
            };
            LibraryRow { name, shares, functions: heaviest_first(functions) }
        };
        let mut rows: Vec<LibraryRow> = self.shares.into_iter().map(row).collect();
        let order = |row: &LibraryRow| (row.shares.self_count, row.shares.total);
        rows.sort_by(|a, b| order(b).cmp(&order(a)).then_with(|| a.name.cmp(&b.name)));
        rows
    }
}

/// Returns all frames of a stack.
pub(super) fn frames<'a>(symbols: &'a Symbols, locations: &'a [u32]) -> impl Iterator<Item = &'a Frame> {
    locations.iter().flat_map(|location| symbols.frames(*location))
}
