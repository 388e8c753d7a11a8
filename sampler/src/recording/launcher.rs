//! The rank of this process in a job that a launcher started, from the environment that the launcher sets.

#![forbid(unsafe_code)]

use std::ffi::OsString;

/// Position of a process among those that a launcher started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    /// Number of this process, from 0.
    pub number: u32,
    /// Number of processes, if the launcher tells it.
    pub size: Option<u32>,
}

/// Variables with the rank and the number of ranks. A launcher that runs inside another one's job comes first.
const VARIABLES: [(&str, &[&str]); 11] = [
    ("RANK", &["WORLD_SIZE"]),           // torchrun
    ("HOROVOD_RANK", &["HOROVOD_SIZE"]), // with Gloo; with MPI, horovodrun starts mpirun
    ("OMPI_COMM_WORLD_RANK", &["OMPI_COMM_WORLD_SIZE"]),
    ("MV2_COMM_WORLD_RANK", &["MV2_COMM_WORLD_SIZE"]),
    ("PMI_RANK", &["PMI_SIZE"]), // Hydra: MPICH and Intel MPI
    ("PMIX_RANK", &[]),
    ("PALS_RANKID", &[]),
    ("FLUX_TASK_RANK", &["FLUX_JOB_SIZE"]),
    ("SLURM_PROCID", &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"]),
    ("MPI_LOCALRANKID", &["MPI_LOCALNRANKS"]),
    ("JOB_COMPLETION_INDEX", &[]), // Kubernetes
];

impl Rank {
    /// Finds the rank in an environment. `None` outside of a job.
    pub fn find(variable: impl Fn(&str) -> Option<OsString>) -> Option<Rank> {
        let number = |name: &str| {
            let value = variable(name)?.into_string().ok()?;
            value.bytes().all(|byte| byte.is_ascii_digit()).then(|| value.parse().ok())?
        };
        VARIABLES.iter().find_map(|&(rank, sizes)| {
            let (number, size) = (number(rank)?, sizes.iter().find_map(|name| number(name)));
            // `RANK` is a common word. Slurm sets its variables for a batch script, too, which is a single process.
            let is_certain = match rank {
                "RANK" => size.is_some(),
                "SLURM_PROCID" => {
                    number != 0 || variable("SLURM_STEP_ID").is_some() || variable("SLURM_JOB_ID").is_none()
                }
                _ => true,
            };
            is_certain.then_some(Rank { number, size })
        })
    }

    /// Rank of this process.
    pub fn of_this_process() -> Option<Rank> {
        Rank::find(|name| std::env::var_os(name))
    }

    /// Returns true unless the launcher says that there is a single process.
    pub fn has_siblings(self) -> bool {
        self.size != Some(1)
    }

    /// Returns true for a variable that contains a rank.
    pub(crate) fn is_in_variable(name: &str) -> bool {
        VARIABLES.iter().any(|(rank, _)| *rank == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(environment: &str) -> Option<(u32, bool)> {
        let variable = |name: &str| {
            let assignment = environment.split(' ').filter_map(|word| word.split_once('='));
            assignment.into_iter().find(|(variable, _)| *variable == name).map(|(_, value)| value.into())
        };
        Rank::find(variable).map(|rank| (rank.number, rank.has_siblings()))
    }

    #[test]
    fn every_launcher_is_known() {
        for (environment, expected) in [
            ("OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 PMIX_RANK=3", Some((3, true))),
            ("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 PMIX_RANK=0", Some((0, false))),
            ("PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=0", Some((1, true))),
            ("PMIX_RANK=7", Some((7, true))),
            ("MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2", Some((1, true))),
            ("RANK=5 WORLD_SIZE=8 SLURM_PROCID=1 SLURM_NTASKS=2", Some((5, true))),
            ("RANK=5", None),
            ("HOROVOD_RANK=1 HOROVOD_SIZE=2 HOROVOD_LOCAL_RANK=0", Some((1, true))),
            ("SLURM_PROCID=2 SLURM_NTASKS=4", Some((2, true))),
            ("SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_JOB_ID=9", None),
            ("SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_JOB_ID=9 SLURM_STEP_ID=0", Some((0, true))),
            ("SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_NTASKS=4 SLURM_STEP_ID=0", Some((0, false))),
            ("OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 SLURM_PROCID=0 SLURM_NTASKS=2", Some((2, true))),
            ("JOB_COMPLETION_INDEX=4", Some((4, true))),
            ("PMI_RANK=../x", None),
            ("PMI_RANK=-1", None),
            ("", None),
        ] {
            assert_eq!(rank(environment), expected, "{environment}");
        }
    }
}
