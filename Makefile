# The menu. What each line does is written in the script it calls.
.PHONY: help demo test test-lines bench build check fmt setup install uninstall

help:
	@echo "make demo    profile a Numba program under perf, with and without us"
	@echo "make test    everything CI runs"
	@echo "make test-lines  line tables do not change the code, for every version of Numba: hours"
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

test-lines:
	@ci/lines.sh all

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
