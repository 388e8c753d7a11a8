# Code that `jitlisten attach` runs in the target process: see inject.rs. Prints nothing and raises no exception.
def _jitlisten_attached():
    import ctypes
    import os
    import sys

    state = ctypes.c_uint64.from_address(@MEMORY@)
    # Stop if the request was cancelled, or if this process is a forked child.
    if state.value != 0 or os.getpid() != @PID@:
        return
    state.value = 1
    try:
        # Import by path, because a search of sys.path would also make other packages from our directory importable.
        if "jitlisten" not in sys.modules:
            from importlib.machinery import PathFinder
            from importlib.util import module_from_spec

            spec = PathFinder.find_spec("jitlisten", [@PACKAGES@])
            module = module_from_spec(spec)
            sys.modules["jitlisten"] = module
            try:
                spec.loader.exec_module(module)
            except BaseException:
                del sys.modules["jitlisten"]
                raise
        import jitlisten

        @CALL@
        now = jitlisten.status()
        functions = len(jitlisten.functions()) if now.open else 0
        sinks = ", ".join(now.sinks) or "none"
        result = "ok process %d: sinks on: %s; %d compiled functions" % (os.getpid(), sinks, functions)
    except BaseException as error:
        result = "failed %s: %s" % (type(error).__name__, error)
    result = result.encode("utf-8", "backslashreplace")[:@ROOM@]
    ctypes.memmove(@MEMORY@ + 16, result, len(result))
    ctypes.c_uint64.from_address(@MEMORY@ + 8).value = len(result)
    state.value = 2


_jitlisten_attached()
del _jitlisten_attached
