"""Eight threads compile simultaneously, each a function with a file and line numbers of its own: eight_threads.py"""

import linecache
import threading

from numba import njit

COUNT = 8
barrier = threading.Barrier(COUNT)
results = [None] * COUNT


def work(index):
    text = "\n" * (100 * index) + "def worker_%d(n):\n    s = 0.0\n" % index
    text += "".join("    for i in range(n):\n        s += %d.5 * i\n" % term for term in range(3))
    text += "    return s\n"
    scope, file = {}, "/sources/worker_%d.py" % index
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)  # Numba reads the source
    exec(compile(text, file, "exec"), scope)
    function = njit(nogil=True)(scope["worker_%d" % index])
    barrier.wait()
    results[index] = function(10)


threads = [threading.Thread(target=work, args=(index,)) for index in range(COUNT)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(results)
