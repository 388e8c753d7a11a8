//! Names of recordings in the commands that messages suggest.

use std::path::Path;

/// Returns an output as a pattern of the files of several processes.
pub(crate) fn as_pattern(output: &Path) -> String {
    output.display().to_string().replace("%p", "*")
}

/// Returns the pattern of an output as a word of a POSIX shell, for the commands that read it.
pub(crate) fn as_argument(output: &Path) -> String {
    let name = output.display().to_string();
    // A name that begins with a dash would be an option.
    let name = if name.starts_with('-') { format!("./{name}") } else { name };
    name.split("%p").map(shell_word).collect::<Vec<_>>().join("*")
}

/// Quotes text for a POSIX shell, if it must be quoted.
fn shell_word(text: &str) -> String {
    let is_plain = |character: char| character.is_alphanumeric() || "_@%+=:,./-".contains(character);
    if text.chars().all(is_plain) { text.to_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Checks that a shell passes each name unchanged, and expands the pattern of several processes.
    #[test]
    fn a_shell_reads_the_name_of_a_recording() {
        for name in
            ["../a b/p24 ü.data", "it's $HOME `a` \"b\" \\.data", "~", "a;b&c|d(e)", "x*?[y]", "#a", "!1", "é%h.data"]
        {
            let script = format!("printf %s {}", as_argument(Path::new(name)));
            let output = Command::new("sh").args(["-c", &script]).output().expect("sh");
            assert_eq!(String::from_utf8_lossy(&output.stdout), name, "{script}");
        }
        let arguments = ["é.data", "../a-b_c.1", "pool %p.data", "-o", "pool-%p.data"].map(Path::new).map(as_argument);
        assert_eq!(arguments, ["é.data", "../a-b_c.1", "'pool '*.data", "./-o", "pool-*.data"]);
        assert_eq!(as_pattern(Path::new("pool %p.data")), "pool *.data");
    }
}
