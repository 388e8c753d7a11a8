"""Build backend (PEP 517), a wrapper around maturin. maturin builds the command and packs the wheel. Before that, the
library is built and copied into the package, because maturin does not know it as a dependency. For the same reason, the
source distribution contains every file in git.

``JITLISTEN_LIBRARY`` names a library that is already built (ci/wheel.sh builds one for an old glibc).
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
    library = os.environ.get("JITLISTEN_LIBRARY")
    if not library:
        subprocess.run(["cargo", "build", "--profile", "wheel", "-p", "jitlisten-capi"], check=True, stdout=sys.stderr)
        target = os.environ.get("CARGO_TARGET_DIR", "target")
        library = os.path.join(target, "wheel", "libjitlisten.so")
    shutil.copyfile(library, os.path.join(_PACKAGE, "libjitlisten.so"))
    with open(os.path.join(_PACKAGE, "THIRD-PARTY-LICENSES"), "w", encoding="utf-8") as licences:
        licences.write(third_party.text())
    os.makedirs("target", exist_ok=True)
    with open(os.path.join("target", "jitlisten.cyclonedx.json"), "w", encoding="utf-8") as sbom:
        sbom.write(third_party.bill_of_materials(_version()))
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
    """Packs all files in git, dated by the commit or ``SOURCE_DATE_EPOCH``, so that equal sources give equal bytes."""
    files = subprocess.run(["git", "ls-files", "-z"], check=True, capture_output=True).stdout.decode().split("\0")
    name = f"jitlisten-{_version()}"
    path = os.path.join(sdist_directory, name + ".tar.gz")
    date = (
        os.environ.get("SOURCE_DATE_EPOCH")
        or subprocess.run(["git", "log", "-1", "--format=%ct"], check=True, capture_output=True).stdout
    )

    def normalize(member):
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mtime = int(date)
        member.mode = 0o755 if member.mode & 0o100 else 0o644
        return member

    metadata = _metadata()
    with open(path, "wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as compressed:
        with tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as sdist:
            for file in filter(None, files):
                if os.path.lexists(file) and not file.startswith(_EXCLUDED):
                    sdist.add(file, f"{name}/{file}", recursive=False, filter=normalize)
            member = normalize(tarfile.TarInfo(f"{name}/PKG-INFO"))
            member.size = len(metadata)
            sdist.addfile(member, io.BytesIO(metadata))
    return os.path.basename(path)


#: Directories left out of the source distribution: test data for the crates, and CI files.
_EXCLUDED = ("fuzz/", ".ci/")


def _version():
    with open("Cargo.toml", encoding="utf-8") as manifest:
        return re.search(r'^version = "(.*)"$', manifest.read(), re.MULTILINE).group(1)


def _metadata():
    import maturin

    with tempfile.TemporaryDirectory() as directory:
        dist_info = maturin.prepare_metadata_for_build_wheel(directory)
        with open(os.path.join(directory, dist_info, "METADATA"), "rb") as metadata:
            return metadata.read()
