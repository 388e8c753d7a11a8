"""Runs program.py and raises SIGPROF twice a second once it has compiled. demo/stops.gdb then prints each stack."""

import pathlib
import runpy
import signal

signal.setitimer(signal.ITIMER_PROF, 6, 0.5)
runpy.run_path(str(pathlib.Path(__file__).with_name("program.py")), run_name="__main__")
