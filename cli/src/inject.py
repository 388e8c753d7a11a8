# Runs in the process that `jitlisten attach` is about: see inject.rs. Prints nothing, raises nothing.
def _jitlisten_attached():
    import os
    import sys

    directory = @DIRECTORY@
    try:
        # Not by sys.path: what else is installed beside the package is none of this process's business.
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
    try:
        with open(directory + "/result.new", "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(result + "\n")
        os.rename(directory + "/result.new", directory + "/result")
        if os.path.exists(directory + "/late"):
            for name in os.listdir(directory):
                os.unlink(directory + "/" + name)
            os.rmdir(directory)
    except OSError:
        pass


_jitlisten_attached()
del _jitlisten_attached
