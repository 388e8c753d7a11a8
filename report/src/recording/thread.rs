//! Threads of recorded processes.

/// Thread of a recorded process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Thread {
    /// Process of the thread.
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
    /// Last known name.
    pub name: String,
    /// Machine that the thread ran on.
    pub host: String,
    /// Rank of the process, if a launcher such as `mpirun` started it.
    pub rank: Option<u32>,
    /// Name that the program gave to the process, such as that of a worker in a pool; empty if it gave none.
    pub process: String,
    /// The `jitlisten record` that the process belongs to; empty if it is unknown.
    pub run: String,
}

impl Thread {
    /// Returns the rank and the name of the process; empty if it has neither.
    pub(crate) fn process_label(&self) -> String {
        let rank = self.rank.map(|rank| format!("rank {rank}"));
        let name = Some(self.process.clone()).filter(|name| !name.is_empty());
        rank.into_iter().chain(name).collect::<Vec<_>>().join(", ")
    }
}
