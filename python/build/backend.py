"""The build backend (PEP 517): maturin builds the command and packs; before that, the library is built and put into the package, and
the source distribution is everything that is in git, because the library is no dependency that maturin could see.

``JITLISTEN_LIBRARY`` names a library that was built already (ci/wheel.sh builds one for an old glibc).
"""

import io
import os
import re
import shutil
import subprocess
import sys
import tarfile

import third_party

_PACKAGE = os.path.join("python", "jitlisten")


def prepare():
    built = os.environ.get("JITLISTEN_LIBRARY")
    if not built:
        subprocess.run(["cargo", "build", "--profile", "wheel", "-p", "jitlisten-capi"], check=True, stdout=sys.stderr)
        target = os.environ.get("CARGO_TARGET_DIR", "target")
        built = os.path.join(target, "wheel", "libjitlisten.so")
    shutil.copyfile(built, os.path.join(_PACKAGE, "libjitlisten.so"))
    with open(os.path.join(_PACKAGE, "THIRD-PARTY-LICENSES"), "w", encoding="utf-8") as licences:
        licences.write(third_party.text())
    headers = os.path.join(_PACKAGE, "include")
    os.makedirs(headers, exist_ok=True)
    for name in ("jitlisten.h", "jitlisten_llvm.hpp"):
        shutil.copyfile(os.path.join("include", name), os.path.join(headers, name))


def get_requires_for_build_wheel(config_settings=None):
    return []


def get_requires_for_build_sdist(config_settings=None):
    return []


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    import maturin

    return maturin.prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    prepare()
    import maturin

    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory, config_settings=None):
    with open("Cargo.toml", encoding="utf-8") as manifest:
        version = re.search(r'^version = "(.*)"$', manifest.read(), re.MULTILINE).group(1)
    name = f"jitlisten-{version}"
    files = subprocess.run(["git", "ls-files", "-z"], check=True, capture_output=True).stdout.decode().split("\0")
    path = os.path.join(sdist_directory, name + ".tar.gz")
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as sdist:
        for file in filter(None, files):
            if os.path.lexists(file) and not file.startswith(_NOT_SHIPPED):
                sdist.add(file, f"{name}/{file}", recursive=False)
        metadata = _metadata(version)
        entry = tarfile.TarInfo(f"{name}/PKG-INFO")
        entry.size = len(metadata)
        sdist.addfile(entry, io.BytesIO(metadata))
    return os.path.basename(path)


#: Megabytes of data for tests of the crates.
_NOT_SHIPPED = ("fuzz/", ".ci/")


def _metadata(version):
    with open("pyproject.toml", encoding="utf-8") as project:
        text = project.read()
    summary = re.search(r'^description = "(.*)"$', text, re.MULTILINE).group(1)
    requires = re.search(r'^requires-python = "(.*)"$', text, re.MULTILINE).group(1)
    fields = [
        "Metadata-Version: 2.1",
        "Name: jitlisten",
        f"Version: {version}",
        f"Summary: {summary}",
        "License: MIT OR Apache-2.0",
        f"Requires-Python: {requires}",
    ]
    return ("\n".join(fields) + "\n").encode()
