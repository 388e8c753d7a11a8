"""Makes code that LLVM compiles at run time visible to profilers, debuggers and unwinders. Importing this does nothing."""
