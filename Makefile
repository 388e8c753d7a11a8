# The menu. What each line does is written in the script it calls.
.PHONY: help demo quick test test-long one test-systems test-hosts test-suites test-lines test-truth test-aarch64 bench bench-growth build wheel wheel-aarch64 test-sdist release-check check fmt hooks setup install uninstall

help:
	@echo "make demo    profile a Numba program: the report, and perf with and without jitlisten"
	@echo "make quick   checks, unit tests, one wheel, one tool of each kind: two minutes once built"
	@echo "make test    every test except slow ones: 25 minutes after the set-up"
	@echo "make test-long  slow tests, soak, miri, fuzzing, processors, userlands, Numba releases, mutations, aarch64; hours"
	@echo "make one T=name  the tests whose name contains it, and what they need"
	@echo "make test-systems  the chain in Debian 11, 13 and unstable; not part of test"
	@echo "make test-hosts    one unmodified LLVM host of each kind; not part of test"
	@echo "make test-suites   the test suites of llvmlite, Numba and CPython; not part of test"
	@echo "make test-truth    seconds per line, of bursts, short threads and waits: programs that time themselves; an hour"
	@echo "make test-lines    line tables leave the code unchanged, for every version of Numba: hours"
	@echo "make test-aarch64  the library in an emulated machine; not part of test"
	@echo "make bench   costs, as ratios"
	@echo "make bench-growth   growth of the costs, as exponents"
	@echo "make build   target/release/libjitlisten.so and .a"
	@echo "make wheel   target/wheels: the Python wheels and the source distribution"
	@echo "make wheel-aarch64, make test-sdist   the aarch64 wheel; a build from the source distribution"
	@echo "make check   format, lints, documentation"
	@echo "make release-check  one version, crates packaged, licence texts in the wheel"
	@echo "make fmt     format the sources"
	@echo "make hooks   check format, lints and prose before each commit"
	@echo "make install [PREFIX=/usr/local] [DESTDIR=], make uninstall"
	@echo "make setup   packages and virtual environments for all of these"

demo:
	@demo/run.sh

quick:
	@ci/quick.sh

test:
	@ci/test.sh

test-long:
	@ci/test.sh long

one:
	@ci/one.sh '$(T)'

test-systems: build
	@ci/systems.sh trixie sid bullseye

test-hosts: build
	@ci/hosts.py

test-suites:
	@ci/suites.sh

test-truth:
	@ci/lines.sh truth

test-lines:
	@ci/lines.sh all

test-aarch64: wheel-aarch64
	@ci/aarch64.sh

bench:
	@ci/bench.sh

bench-growth: build
	@benches/growth/run.py target/release/libjitlisten.so

build:
	cargo build --release

wheel:
	@ci/setup.sh wheel
	@ci/wheel.sh build

wheel-aarch64:
	@ci/setup.sh wheel
	@ci/wheel.sh build aarch64

test-sdist:
	@ci/wheel.sh sdist

release-check:
	@ci/release.py

check:
	@ci/check.sh

fmt:
	cargo fmt --all
	@ci/setup.sh lint
	target/venv/lint/bin/ruff format
	target/venv/lint/bin/ruff check --fix

hooks:
	@ci/setup.sh lint
	git config core.hooksPath ci/hooks

setup:
	@ci/setup.sh

install: build
	@PREFIX='$(PREFIX)' LIBDIR='$(LIBDIR)' DESTDIR='$(DESTDIR)' capi/install.sh install

uninstall:
	@PREFIX='$(PREFIX)' LIBDIR='$(LIBDIR)' DESTDIR='$(DESTDIR)' capi/install.sh uninstall
