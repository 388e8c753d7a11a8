; The chain of hosts/chain.ll with each function in its own section, and two functions in between that are never called.
; JITLink drops the sections of these two, and their FDEs in the middle of .eh_frame.

define double @gamma(i64 %n, double %x) noinline nounwind section ".text.gamma" {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %a = phi double [ %x, %entry ], [ %d, %loop ]
  %square = fmul double %a, %a
  %bigger = fadd double %square, 1.0
  %b = fdiv double 1.0, %bigger
  %c = fmul double %a, 0.75
  %d = fadd double %b, %c
  %next = add i64 %i, 1
  %done = icmp uge i64 %next, %n
  br i1 %done, label %out, label %loop
out:
  ret double %d
}

define internal double @unused_before_beta(double %x) noinline nounwind section ".text.unused" {
  %z = fmul double %x, 2.0
  ret double %z
}

define double @beta(i64 %n, double %x) noinline nounwind section ".text.beta" {
  %y = call double @gamma(i64 %n, double %x)
  %z = fmul double %y, 2.0
  ret double %z
}

define internal double @unused_before_alpha(double %x) noinline nounwind section ".text.unused" {
  %z = fmul double %x, 3.0
  ret double %z
}

define double @alpha(i64 %n, double %x) noinline nounwind section ".text.alpha" {
  %y = call double @beta(i64 %n, double %x)
  %z = fsub double %y, 3.0
  ret double %z
}
