//! Summary of all time by activity. Each sample counts once.

use rustc_hash::FxHashMap;

use super::activity::{Activities, Activity, StackActivity};
use super::{Count, SourcePosition, heaviest_first};

/// Samples by activity. The fields add up to all samples except those of idle threads.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Compiled code, including the C functions that it calls.
    pub compiled: Count,
    /// The user's Python code, including the C functions that it calls.
    pub interpreted: Count,
    /// Libraries, hottest first.
    pub libraries: Vec<(String, Count)>,
    /// Numba's compiler and LLVM.
    pub compiling: Count,
    /// Construction of Numba's registries.
    pub first_use: Count,
    /// Loads from Numba's cache.
    pub loading: Count,
    /// Part of `compiling` in LLVM.
    pub in_llvm: Count,
    /// Compile time by the user line that triggered it: file and line number, hottest first.
    pub compiling_for: Vec<(SourcePosition, Count)>,
    /// Imports by library, hottest first.
    pub importing: Vec<(String, Count)>,
    /// Garbage collection.
    pub collecting: Count,
    /// End of the interpreter.
    pub ending: Count,
    /// Waits by reason, longest first.
    pub waiting: Vec<(String, Count)>,
}

impl Summary {
    /// Returns the count of each activity.
    pub fn rows(&self) -> [(Activity, Count); 10] {
        Activity::ALL.map(|activity| (activity, self.count_of(activity)))
    }

    fn count_of(&self, activity: Activity) -> Count {
        match activity {
            Activity::Compiled => self.compiled,
            Activity::Interpreted => self.interpreted,
            Activity::Library => sum(&self.libraries),
            Activity::Compiling => self.compiling,
            Activity::Importing => sum(&self.importing),
            Activity::Collecting => self.collecting,
            Activity::Waiting => sum(&self.waiting),
            Activity::FirstUse => self.first_use,
            Activity::Loading => self.loading,
            Activity::Ending => self.ending,
        }
    }
}

/// Summary under construction.
#[derive(Debug, Default)]
pub(super) struct Sums {
    summary: Summary,
    by_name: FxHashMap<(Activity, u32), Count>,
    compiling_for: FxHashMap<(u32, u32), Count>,
}

impl Sums {
    pub(super) fn add(&mut self, stack_activity: &StackActivity, count: Count) {
        match stack_activity.activity {
            Activity::Compiled => self.summary.compiled += count,
            Activity::Interpreted => self.summary.interpreted += count,
            Activity::Collecting => self.summary.collecting += count,
            Activity::FirstUse => self.summary.first_use += count,
            Activity::Loading => self.summary.loading += count,
            Activity::Ending => self.summary.ending += count,
            Activity::Compiling => {
                self.summary.compiling += count;
                if stack_activity.in_llvm {
                    self.summary.in_llvm += count;
                }
                if let Some(user) = stack_activity.user {
                    *self.compiling_for.entry(user).or_default() += count;
                }
            }
            Activity::Library | Activity::Importing | Activity::Waiting => {
                *self.by_name.entry((stack_activity.activity, stack_activity.name)).or_default() += count;
            }
        }
    }

    pub(super) fn finish(self, activities: &Activities, file_of: &impl Fn(Option<u32>) -> Option<u32>) -> Summary {
        let mut summary = self.summary;
        for ((activity, name), count) in self.by_name {
            let rows = match activity {
                Activity::Importing => &mut summary.importing,
                Activity::Waiting => &mut summary.waiting,
                _ => &mut summary.libraries,
            };
            rows.push((activities.names[name as usize].clone(), count));
        }
        for rows in [&mut summary.libraries, &mut summary.importing, &mut summary.waiting] {
            *rows = heaviest_first(std::mem::take(rows));
        }
        let lines = self.compiling_for.into_iter();
        summary.compiling_for =
            heaviest_first(lines.filter_map(|((source, line), count)| Some(((file_of(Some(source))?, line), count))));
        summary
    }
}

/// Returns the sum over a list.
fn sum(counts: &[(String, Count)]) -> Count {
    counts.iter().map(|(_, count)| count).sum()
}
