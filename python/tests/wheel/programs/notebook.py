"""Runs cells, each a text in the JSON of standard input, in a kernel of its own; prints their outputs as JSON."""

import json
import sys

import nbformat
from nbclient import NotebookClient

cells = [nbformat.v4.new_code_cell(text) for text in json.load(sys.stdin)]
notebook = nbformat.v4.new_notebook(cells=cells)
NotebookClient(notebook, kernel_name="python3", allow_errors=True, timeout=240).execute()
json.dump([cell.outputs for cell in notebook.cells], sys.stdout)
