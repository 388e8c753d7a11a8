//! Ownership of source files: the user, a package, or Python. The recorded interpreter decides; without its facts, as
//! in a recording of perf, the names of directories do.

use rustc_hash::FxHashMap;

use super::frozen::{frozen_interpreter, is_loader};
use crate::recording::{Interpreter, Recording};

/// Returns true for generated code without a file, such as `<string>`. `<frozen importlib._bootstrap>` belongs to the
/// standard library, `<stdin>` and the cells of IPython to the user.
pub(crate) fn is_generated(path: &str) -> bool {
    path.starts_with('<')
        && !["<frozen ", "<ipython-input-"].iter().any(|begin| path.starts_with(begin))
        && path != "<stdin>"
}

pub(crate) const STANDARD_LIBRARY: &str = "Python's library";

/// Owners of source files, according to the recorded interpreters.
#[derive(Clone, Debug, Default)]
pub struct Owners {
    interpreters: Vec<Interpreter>,
    /// Parts of paths that the user declares to be his own.
    mine: Vec<String>,
}

impl Owners {
    /// Collects the interpreters of a recording. `mine` are parts of paths that belong to the user in any case.
    pub fn new(recording: &Recording, mine: &[String]) -> Owners {
        let mut interpreters = recording.interpreters.clone();
        if interpreters.is_empty() {
            interpreters.extend(frozen_interpreter(recording));
        }
        Owners { interpreters, mine: mine.to_vec() }
    }

    /// Returns true if a source belongs neither to a library nor to Python.
    pub fn is_user_source(&self, path: &str) -> bool {
        !is_generated(path) && self.package(path).is_none()
    }

    /// Returns the package of an installed Python file or of jitlisten's own, and `Python's library` for the standard
    /// library.
    pub fn package<'a>(&self, path: &'a str) -> Option<&'a str> {
        if path.starts_with("<frozen ") {
            return Some(STANDARD_LIBRARY);
        }
        if path.contains("/jitlisten/_") {
            return Some("jitlisten");
        }
        if self.mine.iter().any(|part| path.contains(part.as_str())) {
            return None;
        }
        let interpreters = || self.interpreters.iter();
        // A project may contain its environment, so the innermost directory decides.
        let innermost = |directories: fn(&Interpreter) -> &[String]| {
            let containing = interpreters().flat_map(directories).filter(|directory| below(path, directory).is_some());
            containing.map(|directory| directory.trim_end_matches('/').len()).max()
        };
        let installed: [fn(&Interpreter) -> &[String]; 3] =
            [|facts| &facts.site, |facts| &facts.library, |facts| &facts.scripts];
        if innermost(|facts| &facts.editable) > installed.into_iter().filter_map(innermost).max() {
            return None;
        }
        let in_site = interpreters().flat_map(|facts| &facts.site).filter_map(|site| below(path, site));
        if let Some(module) = in_site.map(first_module).min_by_key(|module| module.len()) {
            return Some(module);
        }
        let installed = interpreters().flat_map(|facts| &facts.installed);
        let installed = installed.filter_map(|(directory, modules)| {
            let module = first_module(below(path, directory)?);
            modules.iter().any(|other| other == module).then_some(module)
        });
        if let Some(module) = installed.min_by_key(|module| module.len()) {
            return Some(module);
        }
        for folder in ["/site-packages/", "/dist-packages/"] {
            if let Some((_, rest)) = path.rsplit_once(folder) {
                return Some(first_module(rest));
            }
        }
        let is_python = match self.interpreters.is_empty() {
            true => path
                .rsplit_once("/lib/python")
                .is_some_and(|(_, rest)| rest.starts_with(|digit: char| digit.is_ascii_digit())),
            false => interpreters().flat_map(|facts| &facts.library).any(|library| below(path, library).is_some()),
        };
        if is_python {
            return Some(STANDARD_LIBRARY);
        }
        self.script(path).or_else(|| self.frozen_module(path))
    }

    /// Returns the name of an installed command, whose file lacks an extension.
    fn script<'a>(&self, path: &'a str) -> Option<&'a str> {
        let mut scripts = self.interpreters.iter().flat_map(|facts| &facts.scripts);
        let is_command = |name: &&str| !name.contains(['/', '.']);
        scripts.find_map(|directory| below(path, directory).filter(is_command))
    }

    /// Returns the module of a frozen program, whose files have relative paths, unless it is the user's.
    fn frozen_module<'a>(&self, path: &'a str) -> Option<&'a str> {
        let module = (!path.starts_with('/')).then(|| first_module(path))?;
        let contains = |modules: fn(&Interpreter) -> &[String]| {
            self.interpreters.iter().flat_map(modules).any(|other| other == module)
        };
        if contains(|facts| &facts.frozen_library) {
            return Some(STANDARD_LIBRARY);
        }
        // Other programs are not frozen, but may have relative names too.
        let is_frozen = self.interpreters.iter().any(|facts| !facts.frozen_library.is_empty());
        (contains(|facts| &facts.frozen) || is_frozen && is_loader(module)).then_some(module)
    }
}

/// Returns the part of a path below a directory.
fn below<'a>(path: &'a str, directory: &str) -> Option<&'a str> {
    path.strip_prefix(directory.trim_end_matches('/'))?.strip_prefix('/')
}

/// Returns the top-level module of a path.
fn first_module(path: &str) -> &str {
    let first = path.split('/').next().unwrap_or(path);
    first.strip_suffix(".py").unwrap_or(first)
}

/// Maps the file names of C libraries in a process to the packages that ship them.
pub(super) fn packages_of_files<'a>(recording: &'a Recording, owners: &Owners) -> FxHashMap<&'a str, &'a str> {
    let files = recording.files.iter().filter(|file| file.path.contains(".so"));
    let package = |path: &'a str| {
        // Wheel repair tools such as auditwheel put copies of libraries into a directory next to the package.
        owners.package(path).map(|package| package.strip_suffix(".libs").unwrap_or(package))
    };
    files.filter_map(|file| Some((file.path.rsplit('/').next()?, package(&file.path)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owners(interpreter: Interpreter) -> Owners {
        Owners { interpreters: vec![interpreter], mine: Vec::new() }
    }

    fn list(items: &[&str]) -> Vec<String> {
        items.iter().map(|item| (*item).to_owned()).collect()
    }

    #[test]
    fn the_interpreter_decides_not_the_folder() {
        let interpreter = Interpreter {
            library: list(&["/opt/py/stdlib"]),
            scripts: list(&["/opt/py/bin"]),
            site: list(&["/opt/py/stdlib/site-packages", "/home/me/project/.venv/lib/python3.12/site-packages"]),
            installed: vec![("/var/task".to_owned(), list(&["numba", "six"]))],
            editable: list(&["/opt/py/stdlib/site-packages/mine", "/home/me/project"]),
            ..Interpreter::default()
        };
        let owners = owners(interpreter);
        for (path, package) in [
            ("/opt/py/stdlib/json/decoder.py", Some(STANDARD_LIBRARY)),
            ("/opt/py/stdlib/site-packages/numpy/core.py", Some("numpy")),
            ("/opt/py/stdlib/site-packages/mine/a.py", None),
            ("/var/task/numba/core/compiler.py", Some("numba")),
            ("/var/task/six.py", Some("six")),
            ("/var/task/handler.py", None),
            ("/home/me/project/src/a.py", None),
            ("/home/me/project/.venv/lib/python3.12/site-packages/numpy/x.py", Some("numpy")),
            ("/home/me/lib/python3/a.py", None),
            ("/opt/py/bin/pytest", Some("pytest")),
            ("/opt/py/bin/prog.py", None),
            ("/elsewhere/site-packages/other/x.py", Some("other")),
        ] {
            assert_eq!(owners.package(path), package, "{path}");
        }
        let mine = Owners { mine: list(&["/numba/"]), ..owners };
        assert_eq!(mine.package("/var/task/numba/core/compiler.py"), None);
    }

    #[test]
    fn frozen_programs_have_relative_paths() {
        let owners =
            owners(Interpreter { frozen: list(&["numba"]), frozen_library: list(&["json"]), ..Interpreter::default() });
        assert_eq!(owners.package("numba/core/compiler.py"), Some("numba"));
        assert_eq!(owners.package("json/decoder.py"), Some(STANDARD_LIBRARY));
        assert_eq!(owners.package("pyimod02_importers.py"), Some("pyimod02_importers"));
        assert_eq!(owners.package("prog.py"), None);
        assert_eq!(Owners::default().package("pyimodel.py"), None);
    }

    #[test]
    fn without_facts_the_folder_decides() {
        let owners = Owners::default();
        assert_eq!(owners.package("/usr/lib/python3.12/json/decoder.py"), Some(STANDARD_LIBRARY));
        assert_eq!(owners.package("/usr/lib/python3/dist-packages/numpy/x.py"), Some("numpy"));
        assert_eq!(owners.package("/home/me/a.py"), None);
    }
}
