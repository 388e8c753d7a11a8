//! What a command line of Python runs.

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
    /// Finds the program in the arguments of Python, after its options: `-X dev -Wd -um pytest`.
    pub(crate) fn find(arguments: &'a [String]) -> PythonProgram<'a> {
        let mut words = arguments.iter().map(String::as_str);
        while let Some(word) = words.next() {
            let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.is_empty()) else {
                return if word == "-" { PythonProgram::Input } else { PythonProgram::Script(word) };
            };
            if letters.starts_with('-') {
                if letters == "-check-hash-based-pycs" {
                    words.next();
                }
                continue;
            }
            // Options without a value come before the one with a value, which may be part of the same word.
            let Some((at, option)) = letters.char_indices().find(|(_, letter)| "cmWX".contains(*letter)) else {
                continue;
            };
            let value = Some(&letters[at + 1..]).filter(|value| !value.is_empty()).or_else(|| words.next());
            match option {
                'c' => return PythonProgram::Text(value.unwrap_or_default()),
                'm' => return PythonProgram::Module(value.unwrap_or_default()),
                _ => {}
            }
        }
        PythonProgram::Input
    }
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
    }
}
