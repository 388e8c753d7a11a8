//! Tell the unwinders of this process about the `.eh_frame` of run-time generated code.
