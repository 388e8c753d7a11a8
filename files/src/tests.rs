use std::fs::{self, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use super::*;

/// Directory for one test; removed on drop.
struct TestDirectory(PathBuf);

impl TestDirectory {
    fn new(test: &str) -> TestDirectory {
        let path = std::env::temp_dir().join(format!("jitlisten-files-{test}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        TestDirectory(path)
    }

    fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Creates a file that must stay unchanged in every test.
    fn victim(&self) -> PathBuf {
        let victim = self.join("victim");
        fs::write(&victim, "precious").unwrap();
        victim
    }

    fn is_untouched(&self) -> bool {
        fs::read(self.join("victim")).unwrap() == b"precious"
    }
}

impl Drop for TestDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
}

fn error_message<T: std::fmt::Debug>(result: io::Result<T>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn directories_that_others_control_are_refused() {
    let scratch = TestDirectory::new("refused");
    let path = scratch.join("images");
    for (mode, is_refused) in [(0o775, true), (0o757, true), (0o755, false), (0o700, false)] {
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        let result = OwnDirectory::create(&path);
        assert_eq!(result.is_err(), is_refused, "{mode:o}");
        if is_refused {
            assert_eq!(error_message(result), "other users may write to it");
        }
        fs::remove_dir(&path).unwrap();
    }
    fs::create_dir(scratch.join("elsewhere")).unwrap();
    symlink(scratch.join("elsewhere"), &path).unwrap();
    assert_eq!(error_message(OwnDirectory::create(&path)), "not a directory");
    assert_eq!(error_message(OwnDirectory::open(&path)), "not a directory");
    fs::remove_file(&path).unwrap();
    fs::write(&path, "").unwrap();
    assert_eq!(error_message(OwnDirectory::create(&path)), "not a directory");
    assert_eq!(OwnDirectory::create_new(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    // To get a directory of another user, change the owner of this one if running as root, or else use `/`.
    let foreign = scratch.join("other");
    fs::create_dir(&foreign).unwrap();
    let foreign =
        if std::os::unix::fs::chown(&foreign, Some(4711), None).is_ok() { foreign } else { PathBuf::from("/") };
    assert_eq!(error_message(OwnDirectory::open(&foreign)), "owned by another user");
}

#[test]
fn links_at_predictable_names_are_not_followed() {
    let scratch = TestDirectory::new("links");
    let victim = scratch.victim();
    let directory = OwnDirectory::create_new(&scratch.join("images")).unwrap();
    for link in ["file", "text", "copy", "linked"] {
        symlink(&victim, scratch.join("images").join(link)).unwrap();
    }
    assert!(directory.create_file("file").is_err());
    assert!(directory.open_file("file").is_err());
    assert!(create_new(&scratch.join("images/file")).is_err());
    assert!(open_or_create(&scratch.join("images/file")).is_err());
    assert!(open_existing(&scratch.join("images/file")).is_err());
    directory.write("text", b"ours").unwrap();
    directory.copy(&b"a copy"[..], "copy").unwrap();
    assert!(directory.link(&scratch.join("images/text"), "linked").is_err());
    assert!(scratch.is_untouched());
    assert_eq!(fs::read(scratch.join("images/text")).unwrap(), b"ours");
    assert!(fs::symlink_metadata(scratch.join("images/text")).unwrap().is_file());
    let mut names = directory.names().unwrap();
    names.sort();
    assert_eq!(names, ["copy", "file", "linked", "text"], "no temporary name is left");
    for outside in ["../x", "", ".", "..", "/etc/x", "a/b"] {
        assert!(directory.create_file(outside).is_err(), "{outside:?}");
        assert!(directory.replacement(outside).is_err(), "{outside:?}");
    }
}

#[test]
fn directories_below() {
    let scratch = TestDirectory::new("below");
    let root = OwnDirectory::create_new(&scratch.join("root")).unwrap();
    let library = root.create_below(Path::new("usr/lib")).unwrap();
    assert_eq!(library.path(), scratch.join("root/usr/lib"));
    library.write("a.so", b"x").unwrap();
    assert_eq!([mode(&scratch.join("root/usr")), mode(&scratch.join("root/usr/lib/a.so"))], [0o700, 0o600]);
    let random: Vec<_> = (0..2).map(|_| OwnDirectory::create_random(&scratch.0, "root-").unwrap()).collect();
    assert_ne!(random[0].path(), random[1].path());
    assert_eq!(
        (random[0].path().as_os_str().len(), mode(random[0].path())),
        (scratch.join("root-123456").as_os_str().len(), 0o700)
    );
    symlink("/tmp", scratch.join("root/tmp")).unwrap();
    assert!(root.create_below(Path::new("tmp/x")).is_err());
    assert!(root.create_below(Path::new("usr/../..")).is_err() && root.create_below(Path::new("/usr")).is_err());
}

/// This test runs in a child process, because all threads of a process share the umask.
#[test]
fn modes_do_not_depend_on_the_umask() {
    const VARIABLE: &str = "JITLISTEN_FILES_UMASK_PLACE";
    let Some(scratch) = std::env::var_os(VARIABLE).map(PathBuf::from) else {
        for umask in ["000", "022", "077", "777"] {
            let scratch = TestDirectory::new(&format!("umask-{umask}"));
            let script = format!("umask {umask} && exec \"$0\" modes_do_not_depend_on_the_umask");
            let mut shell = std::process::Command::new("sh");
            shell.args(["-c", &script]).arg(std::env::current_exe().unwrap()).env(VARIABLE, &scratch.0);
            assert!(shell.output().unwrap().status.success(), "umask {umask}");
        }
        return;
    };
    let directory = OwnDirectory::create_new(&scratch.join("images")).unwrap();
    directory.create_file("one").unwrap();
    directory.write("two", b"").unwrap();
    open_or_create(&scratch.join("log")).unwrap();
    Replacement::for_user_path(&scratch.join("private"), Visibility::Private).unwrap().commit().unwrap();
    assert_eq!(mode(&scratch.join("images")), 0o700);
    for file in ["images/one", "images/two", "log", "private"] {
        assert_eq!(mode(&scratch.join(file)), 0o600, "{file}");
    }
    Replacement::for_user_path(&scratch.join("page"), Visibility::Umask).unwrap().commit().unwrap();
    let umask = scratch.to_str().and_then(|scratch| scratch.split("umask-").nth(1)?.split('-').next()).unwrap();
    assert_eq!(mode(&scratch.join("page")), 0o666 & !u32::from_str_radix(umask, 8).unwrap());
}

#[test]
fn a_replacement_changes_nothing_before_commit() {
    let scratch = TestDirectory::new("replacement");
    let page = scratch.join("page.html");
    fs::write(&page, "old").unwrap();
    fs::set_permissions(&page, Permissions::from_mode(0o640)).unwrap();
    let mut replacement = Replacement::for_user_path(&page, Visibility::Umask).unwrap();
    replacement.file().write_all(b"half").unwrap();
    assert_eq!(fs::read(&page).unwrap(), b"old");
    drop(replacement);
    assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1);
    let mut replacement = Replacement::for_user_path(&page, Visibility::Umask).unwrap();
    replacement.file().write_all(b"new").unwrap();
    replacement.commit().unwrap();
    assert_eq!((fs::read(&page).unwrap(), mode(&page)), (b"new".to_vec(), 0o640));
    // A link of this user is followed.
    symlink("page.html", scratch.join("link")).unwrap();
    let mut replacement = Replacement::for_user_path(&scratch.join("link"), Visibility::Private).unwrap();
    replacement.file().write_all(b"by link").unwrap();
    replacement.commit().unwrap();
    assert!(fs::symlink_metadata(scratch.join("link")).unwrap().is_symlink());
    assert_eq!((fs::read(&page).unwrap(), mode(&page)), (b"by link".to_vec(), 0o600));
    symlink("nothing", scratch.join("dangling")).unwrap();
    assert!(Replacement::for_user_path(&scratch.join("dangling"), Visibility::Umask).is_err());
    assert!(Replacement::for_user_path(&scratch.0, Visibility::Umask).is_err());
    if std::os::unix::fs::lchown(scratch.join("link"), Some(4711), None).is_ok() {
        assert_eq!(
            error_message(Replacement::for_user_path(&scratch.join("link"), Visibility::Umask)),
            "a link of another user"
        );
    }
    // `at_exact_path` replaces a link at its path instead.
    Replacement::at_exact_path(&scratch.join("dangling")).unwrap().commit().unwrap();
    assert!(fs::symlink_metadata(scratch.join("dangling")).unwrap().is_file() && !scratch.join("nothing").exists());
    Replacement::for_user_path(Path::new("/dev/null"), Visibility::Umask).unwrap().commit().unwrap();
    assert!(!fs::symlink_metadata("/dev/null").unwrap().is_file());
}

#[test]
fn files_to_append_to_are_checked() {
    let scratch = TestDirectory::new("append");
    let log = scratch.join("log");
    for text in ["one\n", "two\n"] {
        let mut file = open_or_create(&log).unwrap();
        assert_eq!(check_appendable(&file.metadata().unwrap()), None);
        file.write_all(text.as_bytes()).unwrap();
    }
    let mut text = String::new();
    open_or_create(&log).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "one\ntwo\n");
    fs::hard_link(&log, scratch.join("second")).unwrap();
    let reason = |path: &Path| check_appendable(&open_or_create(path).unwrap().metadata().unwrap());
    assert_eq!(reason(&log), Some("a file with several names"));
    assert_eq!(reason(Path::new("/dev/null")), Some("not a regular file"));
}

#[test]
fn a_new_file_replaces_nothing() {
    let directory = TestDirectory::new("new-file");
    let victim = directory.victim();
    let mut replacement = Replacement::at_exact_path(&victim).unwrap();
    replacement.file().write_all(b"new").unwrap();
    assert_eq!(replacement.into_new_file().unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    assert!(directory.is_untouched());
    let mut replacement = Replacement::at_exact_path(&directory.join("new")).unwrap();
    replacement.file().write_all(b"new").unwrap();
    replacement.into_new_file().unwrap();
    assert_eq!(fs::read(directory.join("new")).unwrap(), b"new");
    assert_eq!(fs::read_dir(&directory.0).unwrap().count(), 2, "no temporary file is left");
}
