//! Which files the command and `capi/install.sh` may remove or overwrite: those that we wrote, and no others.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A directory of the test's own, with a file that must stay; removed when dropped.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let path = std::env::temp_dir().join(format!("jitlisten-files-{name}-{}", std::process::id()));
        fs::create_dir(&path).expect("made");
        Place(path)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        fs::write(&path, text).expect("written");
        path
    }

    fn jitlisten(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_jitlisten"));
        command.args(words).current_dir(&self.0).env("HOME", &self.0).output().expect("started")
    }

    /// The command refuses, in one sentence with advice below it, and starts nothing.
    fn refuses(&self, words: &[&str], why: &str) {
        let output = self.jitlisten(words);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(why), "{words:?}: {said}");
        let mut others = said.lines().skip(1);
        assert!(others.all(|line| line.starts_with("  help: ")) && output.stdout.is_empty(), "{words:?}: {said}");
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn holds(path: &Path, text: &str) {
    assert_eq!(fs::read_to_string(path).expect("still there"), text, "{}", path.display());
}

#[test]
fn a_bundle_does_not_replace_a_folder_that_is_none() {
    let place = Place::new("bundle");
    let thesis = place.write("project/src/thesis.tex", "thesis");
    place.write("project/root/a", "a");
    place.write("root/b", "b");
    for folder in ["project", ".", "~", "/"] {
        let folder = if folder == "~" { place.0.to_str().expect("UTF-8") } else { folder };
        let command = ["record", "--bundle", "-o", folder, "--", "sh", "-c", "echo started"];
        place.refuses(&command, if folder == "project" { "is not a bundle" } else { "choose another -o" });
    }
    holds(&thesis, "thesis");
    holds(&place.0.join("project/root/a"), "a");
    holds(&place.0.join("root/b"), "b");
}

#[test]
fn a_recording_does_not_replace_another_file() {
    let place = Place::new("record");
    let program = place.write("prog.py", "print(1)");
    place.refuses(&["record", "-o", "prog.py", "--", "sh", "-c", "echo started"], "is not a recording");
    holds(&program, "print(1)");
}

/// The marker of the directory of a process that is dead.
fn marker(pid: u32) -> String {
    use std::os::unix::fs::MetadataExt as _;
    let namespace = fs::metadata("/proc/self/ns/pid").expect("a namespace").ino();
    format!("jitlisten files of {pid} 1 {namespace}\n")
}

#[test]
fn clean_removes_nothing_by_way_of_a_link() {
    let place = Place::new("clean");
    let victim = place.write("elsewhere/object-0.so", "precious");
    let dump = place.write("elsewhere/jit-4194305.dump", "precious");
    place.write("elsewhere/alive", &marker(4194305));
    for link in ["image-4194305-1", "jitdump-4194305-1", "sources"] {
        std::os::unix::fs::symlink(place.0.join("elsewhere"), place.0.join(link)).expect("linked");
    }
    let image = place.write("image-4194306-1/object-0.so", "image");
    place.write("image-4194306-1/alive", &marker(4194306));
    std::os::unix::fs::symlink(&victim, place.0.join("image-4194306-1/object-1.so")).expect("linked");
    fs::hard_link(&victim, place.0.join("image-4194306-1/object-2.so")).expect("linked");
    let notes = place.write("image-4194306-1/notes", "notes");
    let mut command = Command::new(env!("CARGO_BIN_EXE_jitlisten"));
    let done =
        command.args(["clean", "4194305", "4194306"]).env("JITLISTEN_DIR", &place.0).env("HOME", &place.0).output();
    assert!(done.expect("started").status.success());
    for (path, text) in [(&victim, "precious"), (&dump, "precious"), (&notes, "notes")] {
        holds(path, text);
    }
    assert!(place.0.join("image-4194306-1/object-1.so").is_symlink() && !image.exists());
}

/// By way of a link, over a file of another mode, into a directory that cannot be changed, and to what is no file.
#[test]
fn man_pages_replace_files_and_nothing_is_left_beside_them() {
    use std::os::unix::fs::PermissionsExt as _;
    let place = Place::new("replace");
    let old = place.write("man/jitlisten-lines.1", "old");
    fs::set_permissions(&old, fs::Permissions::from_mode(0o604)).expect("ours");
    let elsewhere = place.write("elsewhere/page", "old");
    std::os::unix::fs::symlink(&elsewhere, place.0.join("man/jitlisten-why.1")).expect("linked");
    std::os::unix::fs::symlink("/dev/null", place.0.join("man/jitlisten-top.1")).expect("linked");
    let opened = fs::File::open(&old).expect("there");
    assert!(place.jitlisten(&["man-pages", "man"]).status.success());
    assert_eq!(std::io::read_to_string(opened).expect("readable"), "old", "the old file is whole");
    for page in [&old, &elsewhere] {
        assert!(fs::read_to_string(page).expect("written").contains(".TH"), "{}", page.display());
    }
    assert_eq!(fs::metadata(&old).expect("there").permissions().mode() & 0o777, 0o604);
    assert!(place.0.join("man/jitlisten-why.1").is_symlink() && place.0.join("man/jitlisten-top.1").is_symlink());
    let names = fs::read_dir(place.0.join("man")).expect("a directory").flatten().map(|entry| entry.file_name());
    let others: Vec<_> = names.filter(|name| !name.to_string_lossy().ends_with(".1")).collect();
    assert!(others.is_empty(), "{others:?}");
}

/// A full disk is told, with a status of its own, whatever is written to standard output.
#[test]
fn a_full_disk_is_told() {
    for words in [&["completions", "bash"][..], &["doctor"], &["doctor", "--json"], &["clean", "-n", "4194305"]] {
        let full = fs::File::options().write(true).open("/dev/full").expect("a device");
        let mut command = Command::new(env!("CARGO_BIN_EXE_jitlisten"));
        let done = command.args(words).stdout(full).output().expect("started");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(!done.status.success() && said.contains("cannot write to standard output"), "{words:?}: {said}");
    }
}

#[test]
fn uninstall_removes_what_install_installs() {
    let place = Place::new("install");
    let ours =
        ["libjitlisten.so", "libjitlisten.so.0", "libjitlisten.so.0.1.0", "libjitlisten.a", "pkgconfig/jitlisten.pc"];
    let ours: Vec<_> = ours.iter().map(|name| place.write(&format!("lib/{name}"), "ours")).collect();
    let others =
        ["lib/libjitlisten.so.0.1.0.bak", "lib/libjitlisten.so.0-backup", "lib/pkgconfig/other.pc", "include/other.h"];
    let others: Vec<_> = others.iter().map(|name| place.write(name, "other")).collect();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../capi/install.sh");
    let mut uninstall = Command::new(script);
    uninstall.arg("uninstall").env("PREFIX", &place.0).env_remove("DESTDIR").env_remove("LIBDIR");
    assert!(uninstall.status().expect("started").success());
    ours.iter().for_each(|path| assert!(!path.exists(), "{}", path.display()));
    others.iter().for_each(|path| holds(path, "other"));
}

#[test]
fn completions_and_man_pages_are_of_every_command() {
    let place = Place::new("man");
    let jitlisten = |words: &[&str]| {
        let done = Command::new(env!("CARGO_BIN_EXE_jitlisten")).args(words).current_dir(&place.0).output();
        let done = done.expect("started");
        assert!(done.status.success(), "{words:?}");
        String::from_utf8(done.stdout).expect("UTF-8")
    };
    let completions = jitlisten(&["completions", "bash"]);
    jitlisten(&["man-pages", "."]);
    let help = jitlisten(&["--help"]);
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let commands: Vec<_> = commands.take_while(|line| !line.is_empty()).filter_map(|line| line.get(2..13)).collect();
    assert!(commands.len() > 10, "{help}");
    for command in commands.iter().map(|name| name.trim()).filter(|name| !name.is_empty() && *name != "help") {
        assert!(completions.contains(&format!("jitlisten,{command})")), "{command}");
        assert!(place.0.join(format!("jitlisten-{command}.1")).is_file(), "{command}");
    }
}
