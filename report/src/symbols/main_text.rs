//! Program text that is in no file: `python -c TEXT`, and a program on standard input.

use rustc_hash::FxHashSet;

use crate::python_command::{PythonProgram, is_worker};
use crate::recording::Recording;

/// Path of a program that was passed with `-c`, and of one on standard input.
const COMMAND: &str = "python -c";
const STANDARD_INPUT: &str = "stdin";

/// Texts of the recorded programs that are in no file: a recording of several processes may have several.
#[derive(Debug, Default)]
pub(super) struct MainTexts(Vec<MainText>);

/// Programs with the same path.
#[derive(Debug)]
struct MainText {
    path: &'static str,
    /// `None` if the programs differ, because a line may then be that of any of them.
    text: Option<String>,
    /// Words of the texts, to tell their functions from those that libraries generate with `exec`.
    words: FxHashSet<String>,
    /// Number of lines of the longest text.
    lines: u32,
}

impl MainTexts {
    pub(super) fn new(recording: &Recording) -> MainTexts {
        let facts = &recording.facts;
        let commands = std::iter::once(&facts.command).chain(&facts.other_commands);
        let commands = commands.filter(|command| !is_worker(command));
        let commands = commands.filter_map(|command| Some((COMMAND, command_text(command)?)));
        let inputs = recording.interpreters.iter().filter_map(|facts| Some((STANDARD_INPUT, facts.stdin.as_deref()?)));
        let mut texts = MainTexts::default();
        commands.chain(inputs).for_each(|(path, text)| texts.add(path, text));
        texts
    }

    fn add(&mut self, path: &'static str, text: &str) {
        let is_word = |character: char| character.is_alphanumeric() || character == '_';
        let words = text.split(|character| !is_word(character)).map(str::to_owned);
        let lines = text.lines().count() as u32;
        match self.0.iter_mut().find(|known| known.path == path) {
            Some(known) => {
                known.text.take_if(|known| known != text);
                known.words.extend(words);
                known.lines = known.lines.max(lines);
            }
            None => self.0.push(MainText { path, text: Some(text.to_owned()), words: words.collect(), lines }),
        }
    }

    /// Returns a program's path if a line of `<string>` or `<stdin>` belongs to it.
    pub(super) fn path(&self, source: &str, function: &str, line: Option<u32>) -> Option<&'static str> {
        let text = self.0.iter().find(|text| python_name(text.path) == source)?;
        let name = function.rsplit('.').next().unwrap_or(function);
        let name = name.split(['(', ' ']).next().unwrap_or(name);
        let is_in_text = name.starts_with('<') || text.words.contains(name);
        (is_in_text && line.is_none_or(|line| line <= text.lines)).then_some(text.path)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true for the path of a program that is in no file.
    pub(super) fn has_path(&self, path: &str) -> bool {
        self.0.iter().any(|text| text.path == path)
    }

    /// Returns the paths and their texts.
    pub(super) fn into_texts(self) -> Vec<(&'static str, Option<String>)> {
        self.0.into_iter().map(|text| (text.path, text.text)).collect()
    }
}

/// Returns Python's name of a program's file.
pub(super) fn python_name(path: &str) -> &'static str {
    if path == COMMAND { "<string>" } else { "<stdin>" }
}

/// Returns the text of `python -c TEXT`.
fn command_text(command: &[String]) -> Option<&str> {
    match PythonProgram::of_command(command)? {
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
        let texts = MainTexts::new(&recording);
        for (source, function, line, path) in [
            ("<string>", "__main__.f(int64) [v1]", 2, Some(COMMAND)),
            ("<string>", "<module>", 3, Some(COMMAND)),
            ("<string>", "<module>", 4, None),
            ("<string>", "generated", 2, None),
            ("<stdin>", "f", 2, None),
        ] {
            assert_eq!(texts.path(source, function, Some(line)), path, "{source} {function}:{line}");
        }
        assert_eq!(texts.into_texts(), [(COMMAND, Some(command[5].to_owned()))]);
        // A program that runs others with `-c`, twice the same, and then another.
        recording.facts.other_commands = vec![std::mem::take(&mut recording.facts.command)];
        recording.facts.command = ["python", "prog.py"].map(str::to_owned).to_vec();
        assert_eq!(MainTexts::new(&recording).into_texts(), [(COMMAND, Some(command[5].to_owned()))]);
        recording.facts.other_commands.push(["python", "-c", "def g(x): pass"].map(str::to_owned).to_vec());
        let texts = MainTexts::new(&recording);
        assert_eq!(["f", "g"].map(|function| texts.path("<string>", function, Some(1))), [Some(COMMAND); 2]);
        assert_eq!(texts.into_texts(), [(COMMAND, None)]);
        let worker = ["python", "-c", "from multiprocessing.spawn import spawn_main", "--multiprocessing-fork"];
        recording.facts.other_commands = vec![worker.map(str::to_owned).to_vec()];
        assert!(MainTexts::new(&recording).is_empty());
        recording.facts.other_commands.clear();
        recording.facts.command = ["python", "prog.py", "-c", "x"].map(str::to_owned).to_vec();
        assert!(MainTexts::new(&recording).into_texts().is_empty());
    }
}
