"""Faust code that DawDreamer compiles with an embedded LLVM that can be observed only through the GDB JIT list: python
sound_of_dawdreamer.py. Prints a sum."""

import dawdreamer
import numpy as np

engine = dawdreamer.RenderEngine(44100, 512)
faust = engine.make_faust_processor("faust")
faust.set_dsp_string('import("stdfaust.lib"); process = os.osc(440) * 0.5, os.osc(220) * 0.25;')
faust.compile()
engine.load_graph([(faust, [])])
engine.render(1.0)
print(round(float(np.abs(engine.get_audio()).sum()), 1))
