//! Tests that the command and `capi/install.sh` remove or overwrite only our own files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Temporary directory of a test, removed when dropped.
struct TestDirectory(PathBuf);

impl TestDirectory {
    fn new(name: &str) -> TestDirectory {
        let path = std::env::temp_dir().join(format!("jitlisten-files-{name}-{}", std::process::id()));
        fs::create_dir(&path).expect("made");
        TestDirectory(path)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        fs::write(&path, text).expect("written");
        path
    }

    fn run_jitlisten(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_jitlisten"));
        command.args(words).current_dir(&self.0).env("HOME", &self.0).output().expect("started")
    }

    /// Asserts that the command fails with a one-line error and advice, and starts nothing.
    fn assert_refused(&self, words: &[&str], reason: &str) {
        let output = self.run_jitlisten(words);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && stderr.contains(reason), "{words:?}: {stderr}");
        let mut more_lines = stderr.lines().skip(1);
        assert!(more_lines.all(|line| line.starts_with("  help: ")) && output.stdout.is_empty(), "{words:?}: {stderr}");
    }
}

impl Drop for TestDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn assert_content(path: &Path, text: &str) {
    assert_eq!(fs::read_to_string(path).expect("still there"), text, "{}", path.display());
}

#[test]
fn a_bundle_does_not_replace_a_folder_that_is_none() {
    let directory = TestDirectory::new("bundle");
    let thesis = directory.write("project/src/thesis.tex", "thesis");
    directory.write("project/root/a", "a");
    directory.write("root/b", "b");
    for folder in ["project", ".", "~", "/"] {
        let folder = if folder == "~" { directory.0.to_str().expect("UTF-8") } else { folder };
        let command = ["record", "--bundle", "-o", folder, "--", "sh", "-c", "echo started"];
        let reason = if folder == "project" { "is not a bundle" } else { "choose another -o" };
        directory.assert_refused(&command, reason);
        directory.write("perf.data", "not read");
        directory.assert_refused(&["bundle", "perf.data", "-o", folder], reason);
    }
    assert_content(&thesis, "thesis");
    assert_content(&directory.0.join("project/root/a"), "a");
    assert_content(&directory.0.join("root/b"), "b");
}

#[test]
fn a_recording_does_not_replace_another_file() {
    let directory = TestDirectory::new("record");
    let program = directory.write("prog.py", "print(1)");
    directory.assert_refused(&["record", "-o", "prog.py", "--", "sh", "-c", "echo started"], "is not a recording");
    assert_content(&program, "print(1)");
}

/// Content of the marker file in a process's directory.
fn marker(pid: u32) -> String {
    use std::os::unix::fs::MetadataExt as _;
    let namespace = fs::metadata("/proc/self/ns/pid").expect("a namespace").ino();
    format!("jitlisten files of {pid} 1 {namespace}\n")
}

#[test]
fn clean_removes_nothing_by_way_of_a_link() {
    let directory = TestDirectory::new("clean");
    let victim = directory.write("elsewhere/object-0.so", "precious");
    let dump = directory.write("elsewhere/jit-4194305.dump", "precious");
    directory.write("elsewhere/alive", &marker(4194305));
    for link in ["image-4194305-1", "jitdump-4194305-1", "sources"] {
        std::os::unix::fs::symlink(directory.0.join("elsewhere"), directory.0.join(link)).expect("linked");
    }
    let image = directory.write("image-4194306-1/object-0.so", "image");
    directory.write("image-4194306-1/alive", &marker(4194306));
    std::os::unix::fs::symlink(&victim, directory.0.join("image-4194306-1/object-1.so")).expect("linked");
    fs::hard_link(&victim, directory.0.join("image-4194306-1/object-2.so")).expect("linked");
    let notes = directory.write("image-4194306-1/notes", "notes");
    let mut command = Command::new(env!("CARGO_BIN_EXE_jitlisten"));
    let output = command
        .args(["clean", "4194305", "4194306"])
        .env("JITLISTEN_DIR", &directory.0)
        .env("HOME", &directory.0)
        .output();
    assert!(output.expect("started").status.success());
    for (path, text) in [(&victim, "precious"), (&dump, "precious"), (&notes, "notes")] {
        assert_content(path, text);
    }
    assert!(directory.0.join("image-4194306-1/object-1.so").is_symlink() && !image.exists());
}

/// Covers a symbolic link, a file with unusual permissions, and a link to a device.
#[test]
fn man_pages_replace_files_and_nothing_is_left_beside_them() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = TestDirectory::new("replace");
    let old_page = directory.write("man/jitlisten-lines.1", "old");
    fs::set_permissions(&old_page, fs::Permissions::from_mode(0o604)).expect("ours");
    let linked_page = directory.write("elsewhere/page", "old");
    std::os::unix::fs::symlink(&linked_page, directory.0.join("man/jitlisten-why.1")).expect("linked");
    std::os::unix::fs::symlink("/dev/null", directory.0.join("man/jitlisten-top.1")).expect("linked");
    let opened_page = fs::File::open(&old_page).expect("there");
    assert!(directory.run_jitlisten(&["man-pages", "man"]).status.success());
    assert_eq!(std::io::read_to_string(opened_page).expect("readable"), "old", "the old file is whole");
    for page in [&old_page, &linked_page] {
        assert!(fs::read_to_string(page).expect("written").contains(".TH"), "{}", page.display());
    }
    assert_eq!(fs::metadata(&old_page).expect("there").permissions().mode() & 0o777, 0o604);
    assert!(
        directory.0.join("man/jitlisten-why.1").is_symlink() && directory.0.join("man/jitlisten-top.1").is_symlink()
    );
    let names = fs::read_dir(directory.0.join("man")).expect("a directory").flatten().map(|entry| entry.file_name());
    let unexpected_files: Vec<_> = names.filter(|name| !name.to_string_lossy().ends_with(".1")).collect();
    assert!(unexpected_files.is_empty(), "{unexpected_files:?}");
}

/// Every command that writes to standard output must report a full disk.
#[test]
fn a_full_disk_is_told() {
    for words in [&["completions", "bash"][..], &["doctor"], &["doctor", "--json"], &["clean", "-n", "4194305"]] {
        let full = fs::File::options().write(true).open("/dev/full").expect("a device");
        let mut command = Command::new(env!("CARGO_BIN_EXE_jitlisten"));
        let output = command.args(words).stdout(full).output().expect("started");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && stderr.contains("cannot write to standard output"), "{words:?}: {stderr}");
    }
}

#[test]
fn uninstall_removes_what_install_installs() {
    let directory = TestDirectory::new("install");
    let our_files =
        ["libjitlisten.so", "libjitlisten.so.0", "libjitlisten.so.0.1.0", "libjitlisten.a", "pkgconfig/jitlisten.pc"];
    let our_files: Vec<_> = our_files.iter().map(|name| directory.write(&format!("lib/{name}"), "ours")).collect();
    let other_files =
        ["lib/libjitlisten.so.0.1.0.bak", "lib/libjitlisten.so.0-backup", "lib/pkgconfig/other.pc", "include/other.h"];
    let other_files: Vec<_> = other_files.iter().map(|name| directory.write(name, "other")).collect();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../capi/install.sh");
    let mut uninstall = Command::new(script);
    uninstall.arg("uninstall").env("PREFIX", &directory.0).env_remove("DESTDIR").env_remove("LIBDIR");
    assert!(uninstall.status().expect("started").success());
    our_files.iter().for_each(|path| assert!(!path.exists(), "{}", path.display()));
    other_files.iter().for_each(|path| assert_content(path, "other"));
}

#[test]
fn completions_and_man_pages_are_of_every_command() {
    let directory = TestDirectory::new("man");
    let run_jitlisten = |words: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_jitlisten")).args(words).current_dir(&directory.0).output();
        let output = output.expect("started");
        assert!(output.status.success(), "{words:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let completions = run_jitlisten(&["completions", "bash"]);
    run_jitlisten(&["man-pages", "."]);
    let help = run_jitlisten(&["--help"]);
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let commands: Vec<_> = commands.take_while(|line| !line.is_empty()).filter_map(|line| line.get(2..13)).collect();
    assert!(commands.len() > 10, "{help}");
    for command in commands.iter().map(|name| name.trim()).filter(|name| !name.is_empty() && *name != "help") {
        assert!(completions.contains(&format!("jitlisten,{command})")), "{command}");
        assert!(directory.0.join(format!("jitlisten-{command}.1")).is_file(), "{command}");
    }
}
