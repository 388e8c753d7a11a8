//! Opening of a page in the user's browser.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::command;
use crate::problem::Problem;
use crate::recording;

/// Opens a page. Without a browser or a display, prints the page's address.
pub(crate) fn open(page: &Path) -> Result<(), Problem> {
    let absolute = std::path::absolute(page)
        .map_err(|error| Problem::new(format!("cannot find the directory of {}: {error}", page.display())))?;
    let address = address_of(&absolute);
    let is_opened = opener().is_some_and(|opener| {
        // The opener may run as long as the browser: this command does not wait for it, and the terminal's signals do
        // not reach it.
        let mut browser = Command::new(opener);
        browser.arg(&address).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        browser.spawn().is_ok()
    });
    if is_opened { Ok(()) } else { recording::print(format!("{address}\n").as_bytes()) }
}

/// Returns the program that opens pages: `$BROWSER`, which remote editors set, or the desktop's.
fn opener() -> Option<OsString> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let browser = variable("BROWSER").filter(|name| command::find(name).is_some());
    let has_display = || variable("DISPLAY").or_else(|| variable("WAYLAND_DISPLAY")).is_some();
    browser.or_else(|| {
        let desktop = OsStr::new("xdg-open");
        (has_display() && command::find(desktop).is_some()).then(|| desktop.to_owned())
    })
}

/// Returns the address of a file (RFC 8089).
fn address_of(path: &Path) -> String {
    let mut address = "file://".to_owned();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'/' | b'-' | b'.' | b'_' | b'~' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => {
                address.push(char::from(*byte))
            }
            byte => address.push_str(&format!("%{byte:02X}")),
        }
    }
    address
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_escaped() {
        assert_eq!(address_of(Path::new("/a b/é#.html")), "file:///a%20b/%C3%A9%23.html");
    }
}
