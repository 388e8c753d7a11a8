//! Program text that is in no file: `python -c TEXT`, and a program on standard input.

use rustc_hash::FxHashSet;

use crate::python_command::PythonProgram;
use crate::recording::Recording;
use crate::words::file_name;

/// Path of a program that was passed with `-c`, and of one on standard input.
const COMMAND: &str = "python -c";
const STANDARD_INPUT: &str = "stdin";

/// Text of the recorded program, if it is in no file.
#[derive(Debug, Default)]
pub(super) struct MainText {
    /// Text and its path.
    text: Option<(&'static str, String)>,
    /// Words of the text, to tell its functions from those that libraries generate with `exec`.
    words: FxHashSet<String>,
    lines: u32,
}

impl MainText {
    pub(super) fn new(recording: &Recording) -> MainText {
        let command = command_text(&recording.facts.command).map(|text| (COMMAND, text.to_owned()));
        let input = || recording.interpreters.iter().find_map(|facts| facts.stdin.clone());
        let text = command.or_else(|| input().map(|text| (STANDARD_INPUT, text)));
        let is_word = |character: char| character.is_alphanumeric() || character == '_';
        let content = text.as_ref().map_or("", |(_, text)| text);
        let words = content.split(|character| !is_word(character)).map(str::to_owned).collect();
        let lines = content.lines().count() as u32;
        MainText { text, words, lines }
    }

    /// Returns the program's path if a line of `<string>` or `<stdin>` belongs to it.
    pub(super) fn path(&self, source: &str, function: &str, line: Option<u32>) -> Option<&'static str> {
        let (path, _) = self.text.as_ref().filter(|(path, _)| python_name(path) == source)?;
        let name = function.rsplit('.').next().unwrap_or(function);
        let name = name.split(['(', ' ']).next().unwrap_or(name);
        let is_in_text = name.starts_with('<') || self.words.contains(name);
        (is_in_text && line.is_none_or(|line| line <= self.lines)).then_some(path)
    }

    /// Returns the program's path, if it is in no file.
    pub(super) fn main_path(&self) -> Option<&'static str> {
        self.text.as_ref().map(|(path, _)| *path)
    }

    /// Returns the text and its path.
    pub(super) fn into_text(self) -> Option<(&'static str, String)> {
        self.text
    }
}

/// Returns Python's name of a program's file.
pub(super) fn python_name(path: &str) -> &'static str {
    if path == COMMAND { "<string>" } else { "<stdin>" }
}

/// Returns the text of `python -c TEXT`.
fn command_text(command: &[String]) -> Option<&str> {
    let python = command.iter().position(|word| file_name(word).starts_with("python"))?;
    match PythonProgram::find(&command[python + 1..]) {
        PythonProgram::Text(text) => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_functions_of_the_text_belong_to_it() {
        let command = ["/usr/bin/python3", "-I", "-X", "dev", "-c", "def f(x):\n    return x\nf(1)"];
        let mut recording = Recording::default();
        recording.facts.command = command.map(str::to_owned).to_vec();
        let text = MainText::new(&recording);
        for (source, function, line, path) in [
            ("<string>", "__main__.f(int64) [v1]", 2, Some(COMMAND)),
            ("<string>", "<module>", 3, Some(COMMAND)),
            ("<string>", "<module>", 4, None),
            ("<string>", "generated", 2, None),
            ("<stdin>", "f", 2, None),
        ] {
            assert_eq!(text.path(source, function, Some(line)), path, "{source} {function}:{line}");
        }
        recording.facts.command = ["python", "prog.py", "-c", "x"].map(str::to_owned).to_vec();
        assert!(MainText::new(&recording).into_text().is_none());
    }
}
