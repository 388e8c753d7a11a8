# The menu. What each line does is written in the script it calls.
.PHONY: help demo test test-aarch64 bench build check fmt setup install uninstall

help:
	@echo "make demo    profile a Numba program under perf, with and without us"
	@echo "make test    everything CI runs"
	@echo "make test-aarch64  the main scenarios on an emulated machine; slow, not part of make test"
	@echo "make bench   what it costs, as ratios"
	@echo "make build   target/release/libjitlisten.so and .a"
	@echo "make check   format, lints, documentation"
	@echo "make fmt     format the sources"
	@echo "make install [PREFIX=/usr/local] [DESTDIR=], make uninstall"
	@echo "make setup   packages and virtual environments for all of these"

demo:
	@demo/run.sh

test:
	@ci/test.sh

test-aarch64:
	@ci/aarch64.sh

bench:
	@ci/bench.sh

build:
	cargo build --release

check:
	@ci/check.sh

fmt:
	cargo fmt --all

setup:
	@ci/setup.sh

install: build
	@PREFIX='$(PREFIX)' LIBDIR='$(LIBDIR)' DESTDIR='$(DESTDIR)' capi/install.sh install

uninstall:
	@PREFIX='$(PREFIX)' LIBDIR='$(LIBDIR)' DESTDIR='$(DESTDIR)' capi/install.sh uninstall
