;; For lli: says "ready", and loops for ever in compiled code.
@ready = constant [6 x i8] c"ready\0A"

declare i64 @write(i32, i8*, i64)

define double @jitted_work(double %x) noinline {
entry:
  br label %turn
turn:
  %i = phi i64 [0, %entry], [%next, %turn]
  %v = phi double [%x, %entry], [%sum, %turn]
  %part = fmul double %v, 9.9e-01
  %rest = fdiv double 1.0, %part
  %sum = fadd double %part, %rest
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, 100000
  br i1 %more, label %turn, label %end
end:
  ret double %sum
}

define i32 @main() {
entry:
  %said = call i64 @write(i32 1, i8* getelementptr ([6 x i8], [6 x i8]* @ready, i64 0, i64 0), i64 6)
  br label %turn
turn:
  %v = phi double [1.0, %entry], [%sum, %turn]
  %sum = call double @jitted_work(double %v)
  br label %turn
}
