"""The build backend (PEP 517): maturin builds the command and packs; before that, the library is built and put into the
package, and the source distribution is everything that is in git, because the library is no dependency that maturin
could see.

``JITLISTEN_LIBRARY`` names a library that was built already (ci/wheel.sh builds one for an old glibc).
"""

import gzip
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

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
    os.makedirs("target", exist_ok=True)
    with open(os.path.join("target", "jitlisten.cyclonedx.json"), "w", encoding="utf-8") as bill:
        bill.write(third_party.bill_of_materials(_version()))
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
    """Everything that is in git, of the date of the commit or ``SOURCE_DATE_EPOCH``: equal bytes for equal sources."""
    files = subprocess.run(["git", "ls-files", "-z"], check=True, capture_output=True).stdout.decode().split("\0")
    name = f"jitlisten-{_version()}"
    path = os.path.join(sdist_directory, name + ".tar.gz")
    date = (
        os.environ.get("SOURCE_DATE_EPOCH")
        or subprocess.run(["git", "log", "-1", "--format=%ct"], check=True, capture_output=True).stdout
    )

    def without_owner(entry):
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mtime = int(date)
        entry.mode = 0o755 if entry.mode & 0o100 else 0o644
        return entry

    metadata = _metadata()
    with open(path, "wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as sdist:
            for file in filter(None, files):
                if os.path.lexists(file) and not file.startswith(_NOT_SHIPPED):
                    sdist.add(file, f"{name}/{file}", recursive=False, filter=without_owner)
            entry = without_owner(tarfile.TarInfo(f"{name}/PKG-INFO"))
            entry.size = len(metadata)
            sdist.addfile(entry, io.BytesIO(metadata))
    return os.path.basename(path)


#: Megabytes of data for tests of the crates.
_NOT_SHIPPED = ("fuzz/", ".ci/")


def _version():
    with open("Cargo.toml", encoding="utf-8") as manifest:
        return re.search(r'^version = "(.*)"$', manifest.read(), re.MULTILINE).group(1)


def _metadata():
    import maturin

    with tempfile.TemporaryDirectory() as directory:
        written = maturin.prepare_metadata_for_build_wheel(directory)
        with open(os.path.join(directory, written, "METADATA"), "rb") as metadata:
            return metadata.read()
