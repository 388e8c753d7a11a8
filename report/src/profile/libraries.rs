//! Time outside of the user's code: a row for each library, for each compiler, and for the import system.

use rustc_hash::FxHashMap;

use super::activity::{Activities, Activity, StackActivity};
use super::marks::Marks;
use super::role::is_pool_library;
use super::{Count, Shares, heaviest_first};

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

impl RowKey {
    /// Returns the row that a stack's own time belongs to.
    fn of_stack(stack_activity: &StackActivity) -> Option<RowKey> {
        match stack_activity.activity {
            Activity::Compiling => Some(RowKey::Compiler(stack_activity.name)),
            Activity::FirstUse => Some(RowKey::FirstUse),
            Activity::Loading => Some(RowKey::Loading),
            Activity::Importing => Some(RowKey::Imports),
            Activity::Library => Some(RowKey::Library(stack_activity.name)),
            Activity::Compiled => stack_activity.package.map(RowKey::Library),
            Activity::Interpreted | Activity::Collecting | Activity::Ending | Activity::Waiting => None,
        }
    }

    fn name(self, activities: &Activities) -> String {
        match self {
            RowKey::Compiler(name) => activities.compiler(name),
            RowKey::FirstUse => Activity::FirstUse.words().to_owned(),
            RowKey::Loading => Activity::Loading.words().to_owned(),
            RowKey::Imports => "import system".to_owned(),
            RowKey::Library(name) => activities.names[name as usize].clone(),
        }
    }
}

/// Returns the name of the row that a stack's own time belongs to.
pub(crate) fn library_of_stack(activities: &Activities, stack: u32) -> Option<String> {
    RowKey::of_stack(activities.get(stack)).map(|key| key.name(activities))
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

    /// Adds a stack. `packages` are those of its frames, and `rows` holds the row of each function.
    pub(super) fn add(
        &mut self,
        activities: &Activities,
        stack_activity: &StackActivity,
        packages: impl Iterator<Item = u32>,
        rows: &[u32],
        count: Count,
    ) {
        let row_key = RowKey::of_stack(stack_activity);
        if let Some(key) = row_key {
            self.shares.entry(key).or_default().self_count += count;
            if let (RowKey::Library(name), Some(owner)) = (key, stack_activity.owner)
                && !is_pool_library(&activities.names[name as usize])
            {
                *self.functions.entry((name, rows[owner.function as usize])).or_default() += count;
            }
        }
        self.seen.clear();
        let own_library = row_key.and_then(|key| match key {
            RowKey::Library(name) => Some(name),
            RowKey::Compiler(_) | RowKey::FirstUse | RowKey::Loading | RowKey::Imports => None,
        });
        for name in packages.chain(own_library).filter(|name| self.seen.insert(*name)) {
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
        let mut rows: FxHashMap<String, LibraryRow> = FxHashMap::default();
        for (key, shares) in self.shares {
            let functions = match key {
                RowKey::Library(name) => functions.remove(&name).unwrap_or_default(),
                RowKey::Compiler(_) | RowKey::FirstUse | RowKey::Loading | RowKey::Imports => Vec::new(),
            };
            let name = key.name(activities);
            let new_row = LibraryRow { name: name.clone(), shares, functions: heaviest_first(functions) };
            // Numba and llvmlite are one compiler.
            rows.entry(name).and_modify(|row| row.shares.add(shares)).or_insert(new_row);
        }
        let mut rows: Vec<LibraryRow> = rows.into_values().collect();
        let order = |row: &LibraryRow| (row.shares.self_count, row.shares.total);
        rows.sort_by(|a, b| order(b).cmp(&order(a)).then_with(|| a.name.cmp(&b.name)));
        rows
    }
}
