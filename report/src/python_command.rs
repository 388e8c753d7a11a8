//! What a command line of Python runs.

use crate::words::file_name;

/// Program of a command line of Python.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PythonProgram<'a> {
    /// `-c TEXT`.
    Text(&'a str),
    /// `-m MODULE`.
    Module(&'a str),
    /// A script, a folder or an archive.
    Script(&'a str),
    /// `-`, or nothing: standard input.
    Input,
}

impl<'a> PythonProgram<'a> {
    /// Finds the program of a command that runs Python.
    pub(crate) fn of_command(command: &'a [String]) -> Option<PythonProgram<'a>> {
        Some(PythonProgram::find(arguments(command)?))
    }

    /// Finds the program in the arguments of Python, after its options: `-X dev -Wd -um pytest`.
    pub(crate) fn find(arguments: &'a [String]) -> PythonProgram<'a> {
        PythonProgram::with_flags(arguments).0
    }

    /// Finds the program, and the letters of all options without a value.
    fn with_flags(arguments: &'a [String]) -> (PythonProgram<'a>, String) {
        let mut flags = String::new();
        let mut words = arguments.iter().map(String::as_str);
        while let Some(word) = words.next() {
            let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.is_empty()) else {
                return (if word == "-" { PythonProgram::Input } else { PythonProgram::Script(word) }, flags);
            };
            if letters.starts_with('-') {
                if letters == "-check-hash-based-pycs" {
                    words.next();
                }
                continue;
            }
            // Options without a value come before the one with a value, which may be part of the same word.
            let valued = letters.char_indices().find(|(_, letter)| "cmWX".contains(*letter));
            flags.push_str(&letters[..valued.map_or(letters.len(), |(at, _)| at)]);
            let Some((at, option)) = valued else { continue };
            let value = Some(&letters[at + 1..]).filter(|value| !value.is_empty()).or_else(|| words.next());
            match option {
                'c' => return (PythonProgram::Text(value.unwrap_or_default()), flags),
                'm' => return (PythonProgram::Module(value.unwrap_or_default()), flags),
                _ => {}
            }
        }
        (PythonProgram::Input, flags)
    }
}

/// Returns the arguments of Python in a command that runs it.
fn arguments(command: &[String]) -> Option<&[String]> {
    let python = command.iter().position(|word| file_name(word).starts_with("python"))?;
    Some(&command[python + 1..])
}

/// Returns true for the command line of a worker process or a helper of multiprocessing or joblib.
pub(crate) fn is_worker(command: &[String]) -> bool {
    let words = ["--multiprocessing-fork", "from multiprocessing.", "joblib.externals.loky"];
    command.iter().any(|argument| words.iter().any(|word| argument.contains(word)))
}

/// Returns true if a command runs Python so that it ignores `PYTHONPATH`, or the start-up file that is found by it.
pub(crate) fn ignores_start_up_file(command: &[String]) -> bool {
    arguments(command).is_some_and(|arguments| PythonProgram::with_flags(arguments).1.contains(['I', 'E', 'S']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_after_options() {
        for (command, program) in [
            ("prog.py -c x", PythonProgram::Script("prog.py")),
            ("-O -W error -X dev prog.py", PythonProgram::Script("prog.py")),
            ("-Wd -Xdev -BIs prog.py", PythonProgram::Script("prog.py")),
            ("--check-hash-based-pycs never prog.py", PythonProgram::Script("prog.py")),
            ("-u -m pytest -q", PythonProgram::Module("pytest")),
            ("-um pytest", PythonProgram::Module("pytest")),
            ("-mpytest", PythonProgram::Module("pytest")),
            ("-Ic pass", PythonProgram::Text("pass")),
            ("-cpass", PythonProgram::Text("pass")),
            ("-u -", PythonProgram::Input),
            ("", PythonProgram::Input),
        ] {
            let arguments: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
            assert_eq!(PythonProgram::find(&arguments), program, "{command}");
        }
        for (command, ignores) in [
            ("taskset 1 python3 -u -I prog.py", true),
            ("/usr/bin/python -uEm pytest", true),
            ("python -W Ignore prog.py -I", false),
            ("python prog.py -E", false),
            ("prog -I", false),
        ] {
            let command: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
            assert_eq!(ignores_start_up_file(&command), ignores, "{command:?}");
        }
    }
}
