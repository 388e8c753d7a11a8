//! Report title, and threads grouped by process and by machine.

use rustc_hash::FxHashMap;

use super::Report;
use crate::profile::Count;
use crate::python_command::{PythonProgram, is_worker};
use crate::recording::Thread;
use crate::words::{duration, file_name, group_digits, is_perf, plural};

/// Totals of the threads of a process or of a machine.
#[derive(Clone, Debug, Default)]
pub struct Group {
    /// Name of the machine.
    pub host: String,
    /// Pid; 0 for a machine.
    pub pid: u32,
    /// Last known name of the main thread, or of the first thread with samples.
    pub name: String,
    /// Rank of a process, if a launcher such as `mpirun` started it.
    pub rank: Option<u32>,
    /// Rank of the process, and the name that the program gave to it; empty if it has neither.
    pub label: String,
    /// Number of threads that ran.
    pub threads: usize,
    /// All samples of the group.
    pub all: Count,
    /// Samples in compiled code.
    pub compiled: Count,
}

impl Group {
    /// Returns the host and pid, which identify a process.
    pub(crate) fn key(&self) -> (&str, u32) {
        (&self.host, self.pid)
    }
}

impl Report {
    /// Returns the name of the recorded program: `prog.py`, `-m module`, `./program`. For perf, the arguments after
    /// `--`.
    pub fn program(&self) -> String {
        let facts = &self.recording.facts;
        let commands = || std::iter::once(&facts.command).chain(&facts.other_commands);
        let mut programs: Vec<String> = Vec::new();
        // A worker's command line is Python's own.
        for command in commands().filter(|command| !command.is_empty() && !is_worker(command)) {
            let program = program_name(command);
            if !programs.contains(&program) {
                programs.push(program);
            }
        }
        match programs.as_slice() {
            [] => program_name(&facts.command),
            [program] => program.clone(),
            [first, second] => format!("{first} and {second}"),
            [first, others @ ..] => format!("{first} and {} other programs", others.len()),
        }
    }

    /// Returns the version, as in `Python 3.12`, from the files that the process mapped.
    fn python_version(&self) -> Option<String> {
        self.recording.files.iter().find_map(|file| {
            let name = file_name(&file.path);
            let version = name.strip_prefix("lib").unwrap_or(name).strip_prefix("python3.")?;
            let digits: String = version.chars().take_while(char::is_ascii_digit).collect();
            (!digits.is_empty()).then(|| format!("Python 3.{digits}"))
        })
    }

    /// Returns the first line of a report: program, CPU time and elapsed time, threads, clock.
    pub fn headline(&self) -> String {
        let mut parts = vec![self.program()];
        let elapsed = self.elapsed().filter(|elapsed| *elapsed > 0).map(|elapsed| format!("in {}", duration(elapsed)));
        let time = self.is_time().then(|| {
            let unit = if self.recording.is_wall() { "of threads' time" } else { "of CPU time" };
            format!("{} {unit}", duration(self.profile.all.weight))
        });
        let time: Vec<String> = time.into_iter().chain(elapsed).collect();
        parts.extend((!time.is_empty()).then(|| time.join(" ")));
        if self.recording.parts > 1 {
            parts.push(plural(self.recording.parts, "recording"));
        }
        let mut threads = plural(self.threads_that_ran(), "thread");
        match self.processes().len() {
            0 | 1 => {}
            count => threads.push_str(&format!(" in {count} processes")),
        }
        parts.push(threads);
        match self.hosts().len() {
            0 | 1 => {}
            count => parts.push(format!("{count} machines")),
        }
        let event = self.event().trim_end_matches(":u");
        parts.push(match self.is_time() {
            true if self.recording.facts.uses_cpu_clock => format!("{event}, cpu-clock"),
            true => event.to_owned(),
            false => format!("{} of {event}", plural(self.profile.all.samples as usize, "sample")),
        });
        parts.retain(|part| !part.is_empty());
        parts.join(" · ")
    }

    /// Returns a line that describes the recording, its machine and its interpreter.
    pub fn title(&self) -> String {
        let facts = &self.recording.facts;
        let mut parts = vec![self.program()];
        parts.extend(self.python_version());
        let all = self.profile.all;
        let elapsed_text =
            self.elapsed().filter(|elapsed| *elapsed > 0).map(|elapsed| format!(" in {}", duration(elapsed)));
        let elapsed_text = elapsed_text.unwrap_or_default();
        if self.is_time() {
            let unit = if self.recording.is_wall() { "of threads' time" } else { "of CPU time" };
            parts.push(format!("{} {unit}{elapsed_text}", duration(all.weight)));
        } else if !elapsed_text.is_empty() {
            parts.push(elapsed_text.trim_start().to_owned());
        }
        if self.recording.parts > 1 {
            parts.push(format!("{} recordings", self.recording.parts));
        }
        let mut processes = plural(self.threads_that_ran(), "thread");
        match self.processes().len() {
            0 | 1 => {}
            count => processes.push_str(&format!(" in {count} processes")),
        }
        parts.push(processes);
        let event = self.event().trim_end_matches(":u");
        parts.push(format!("{} samples of {event}", group_digits(all.samples)));
        // The recording of a process that was killed does not name its machine.
        let hosts: Vec<Group> = self.hosts().into_iter().filter(|group| !group.host.is_empty()).collect();
        match hosts.as_slice() {
            [Group { host, .. }] => parts.push(format!("on {host}")),
            [] if !facts.host.is_empty() => parts.push(format!("on {}", facts.host)),
            [] => {}
            hosts => parts.push(format!("on {} machines", hosts.len())),
        }
        parts.join(" · ")
    }

    /// Counts the threads that ran. A thread of a pool that only waited for work is not counted.
    pub(crate) fn threads_that_ran(&self) -> usize {
        self.profile.threads.iter().filter(|row| row.ran).count()
    }

    /// Returns the processes that have samples, hottest first.
    pub fn processes(&self) -> Vec<Group> {
        self.groups(|thread| (thread.host.clone(), thread.pid))
    }

    /// Returns the machines that have samples, hottest first.
    pub fn hosts(&self) -> Vec<Group> {
        self.groups(|thread| (thread.host.clone(), 0))
    }

    /// Returns the name and id of a thread, with its process and machine if the report has several.
    pub(crate) fn thread_name(&self, thread: &Thread) -> String {
        let Thread { name, tid, host, .. } = thread;
        let has_several = |key_of: fn(&Thread) -> (&str, u32)| {
            let mut keys = self.profile.threads.iter().map(|row| key_of(&row.thread));
            keys.next().is_some_and(|first| keys.any(|other| other != first))
        };
        let mut text = format!("{name} {tid}");
        if has_several(|thread| (&thread.host, thread.pid)) {
            text.push_str(&format!(" of {}", self.process_name(thread)));
        }
        if !host.is_empty() && has_several(|thread| (&thread.host, 0)) {
            text.push_str(&format!(" on {host}"));
        }
        text
    }

    /// Returns the rank and name of a thread's process, or its pid.
    pub(crate) fn process_name(&self, thread: &Thread) -> String {
        match thread.process_label() {
            label if label.is_empty() => format!("process {}", thread.pid),
            label => label,
        }
    }

    fn groups(&self, key: impl Fn(&Thread) -> (String, u32)) -> Vec<Group> {
        let mut groups: FxHashMap<(String, u32), Group> = FxHashMap::default();
        for row in &self.profile.threads {
            let key = key(&row.thread);
            let group = groups.entry(key).or_insert_with_key(|(host, pid)| Group {
                host: host.clone(),
                pid: *pid,
                rank: row.thread.rank.filter(|_| *pid != 0),
                label: if *pid == 0 { String::new() } else { row.thread.process_label() },
                ..Group::default()
            });
            group.all += row.all;
            group.compiled += row.compiled;
            group.threads += usize::from(row.ran);
            // The main thread's id is the pid.
            if group.name.is_empty() || row.thread.tid == row.thread.pid {
                group.name.clone_from(&row.thread.name);
            }
        }
        let mut groups: Vec<Group> = groups.into_values().collect();
        groups.sort_by(|a, b| b.all.cmp(&a.all).then_with(|| (&a.host, a.pid).cmp(&(&b.host, b.pid))));
        groups
    }
}

fn program_name(command: &[String]) -> String {
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    match words.as_slice() {
        [first, ..] if is_perf(first) => match words.iter().position(|word| *word == "--") {
            Some(separator) => program_name(&command[separator + 1..]),
            None => "perf record".to_owned(),
        },
        // Form of the command: `env NAME=VALUE... program`.
        ["env", ..] => program_name(&command[1..]),
        [first, _, ..] if first.contains('=') => program_name(&command[1..]),
        [python, ..] if file_name(python).starts_with("python") => match PythonProgram::find(&command[1..]) {
            PythonProgram::Module(module) => format!("-m {module}"),
            PythonProgram::Script(script) => file_name(script).to_owned(),
            PythonProgram::Text(_) => "python -c".to_owned(),
            PythonProgram::Input => "python".to_owned(),
        },
        [first, ..] => file_name(first).to_owned(),
        [] => "a recording".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_have_familiar_names() {
        let named = |command: &str| program_name(&command.split(' ').map(str::to_owned).collect::<Vec<_>>());
        for (command, name) in [
            ("/usr/bin/python3.12 dir/prog.py -x", "prog.py"),
            ("python -m pytest -q", "-m pytest"),
            ("python -c pass", "python -c"),
            ("python -W error -um pytest", "-m pytest"),
            ("python -", "python"),
            ("./host 3", "host"),
            ("/usr/bin/perf record -g -- env A=b python prog.py", "prog.py"),
            ("perf record -g", "perf record"),
        ] {
            assert_eq!(named(command), name, "{command}");
        }
        assert_eq!(program_name(&[]), "a recording");
        let worker = "python -c from_multiprocessing.spawn import spawn_main --multiprocessing-fork".replace('_', " ");
        assert!(is_worker(&worker.split(' ').map(str::to_owned).collect::<Vec<_>>()));
    }
}
