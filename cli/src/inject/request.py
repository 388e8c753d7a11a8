# Code that `jitlisten attach` runs in the target process: see mod.rs. Prints nothing and raises no exception.
def _jitlisten_attached():
    import ctypes
    import os
    import sys

    state = ctypes.c_uint64.from_address(@STATE@)
    # Stop if the request was cancelled, or if this process is a forked child.
    if state.value != @WAITING@ or os.getpid() != @PID@:
        return
    # `threading` takes the thread that first imports it for the main thread.
    if @IN_NEW_THREAD@ and "threading" not in sys.modules:
        return
    state.value = @STARTED@
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
        result = "process %d: sinks on: %s; %d compiled functions" % (os.getpid(), sinks, functions)
        outcome = @SUCCEEDED@
    except BaseException as error:
        result = "%s: %s" % (type(error).__name__, error)
        outcome = @FAILED@
    result = result.encode("utf-8", "backslashreplace")[:@MAX_RESULT_BYTES@]
    ctypes.memmove(@RESULT@, result, len(result))
    ctypes.c_uint64.from_address(@LENGTH@).value = len(result)
    state.value = outcome


_jitlisten_attached()
del _jitlisten_attached
