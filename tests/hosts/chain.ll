; The chain for hosts that take LLVM assembly. It has neither frame pointers nor unwind tables (`nounwind`), so nothing
; can unwind it unless both are added. It uses no pointers, so every LLVM from 10 to 22 can read it.

define double @gamma(i64 %n, double %x) noinline nounwind {
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

define double @beta(i64 %n, double %x) noinline nounwind {
  %y = call double @gamma(i64 %n, double %x)
  %z = fmul double %y, 2.0
  ret double %z
}

define double @alpha(i64 %n, double %x) noinline nounwind {
  %y = call double @beta(i64 %n, double %x)
  %z = fsub double %y, 3.0
  ret double %z
}
