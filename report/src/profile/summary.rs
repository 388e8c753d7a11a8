//! Where all the time went: what was done, each sample once.

use rustc_hash::FxHashMap;

use super::{Count, Place};
use crate::activity::{Activities, Activity, StackActivity};

/// All samples, by what was done. Everything here together is all there is.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// In compiled code, with the C functions that it calls.
    pub compiled: Count,
    /// In the user's Python, with the C functions that it calls.
    pub interpreted: Count,
    /// In libraries, the heaviest first.
    pub libraries: Vec<(String, Count)>,
    /// Compiling.
    pub compiling: Count,
    /// What of this was LLVM.
    pub in_llvm: Count,
    /// For which line of the user's it was compiled: file and number, the heaviest first.
    pub compiling_for: Vec<(Place, Count)>,
    /// Importing, by library, the heaviest first.
    pub importing: Vec<(String, Count)>,
    /// Looking for garbage.
    pub collecting: Count,
    /// Waiting, by what for, the heaviest first.
    pub waiting: Vec<(String, Count)>,
}

impl Summary {
    /// How much of each there is.
    pub fn rows(&self) -> [(Activity, Count); 7] {
        Activity::ALL.map(|activity| (activity, self.of(activity)))
    }

    fn of(&self, activity: Activity) -> Count {
        match activity {
            Activity::Compiled => self.compiled,
            Activity::Interpreted => self.interpreted,
            Activity::Library => sum(&self.libraries),
            Activity::Compiling => self.compiling,
            Activity::Importing => sum(&self.importing),
            Activity::Collecting => self.collecting,
            Activity::Waiting => sum(&self.waiting),
        }
    }
}

/// While it is added up.
#[derive(Debug, Default)]
pub(super) struct Sums {
    summary: Summary,
    named: FxHashMap<(Activity, u32), Count>,
    compiling_for: FxHashMap<(u32, u32), Count>,
}

impl Sums {
    pub(super) fn add(&mut self, done: &StackActivity, count: Count) {
        match done.activity {
            Activity::Compiled => self.summary.compiled += count,
            Activity::Interpreted => self.summary.interpreted += count,
            Activity::Collecting => self.summary.collecting += count,
            Activity::Compiling => {
                self.summary.compiling += count;
                if done.in_llvm {
                    self.summary.in_llvm += count;
                }
                if let Some(user) = done.user {
                    *self.compiling_for.entry(user).or_default() += count;
                }
            }
            Activity::Library | Activity::Importing | Activity::Waiting => {
                *self.named.entry((done.activity, done.name)).or_default() += count;
            }
        }
    }

    pub(super) fn finish(self, activities: &Activities, file_of: &impl Fn(Option<u32>) -> Option<u32>) -> Summary {
        let mut summary = self.summary;
        for ((activity, name), count) in self.named {
            let list = match activity {
                Activity::Importing => &mut summary.importing,
                Activity::Waiting => &mut summary.waiting,
                _ => &mut summary.libraries,
            };
            list.push((activities.names[name as usize].clone(), count));
        }
        for list in [&mut summary.libraries, &mut summary.importing, &mut summary.waiting] {
            list.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        }
        let lines = self.compiling_for.into_iter();
        summary.compiling_for =
            lines.filter_map(|((source, line), count)| Some(((file_of(Some(source))?, line), count))).collect();
        summary.compiling_for.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
        summary
    }
}

/// All of a list.
fn sum<'a>(counts: impl IntoIterator<Item = &'a (String, Count)>) -> Count {
    let mut all = Count::default();
    for (_, count) in counts {
        all += *count;
    }
    all
}
