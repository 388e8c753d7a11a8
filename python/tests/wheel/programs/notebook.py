"""Runs notebook cells in a fresh kernel. Reads the cell sources as a JSON list from standard input, and prints the
outputs as JSON."""

import json
import sys

import nbformat
from nbclient import NotebookClient

cells = [nbformat.v4.new_code_cell(source) for source in json.load(sys.stdin)]
notebook = nbformat.v4.new_notebook(cells=cells)
NotebookClient(notebook, kernel_name="python3", allow_errors=True, timeout=240).execute()
json.dump([cell.outputs for cell in notebook.cells], sys.stdout)
