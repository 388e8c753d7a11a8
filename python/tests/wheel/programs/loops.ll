;; For lli. Prints "ready" and loops forever in compiled code.
@ready = constant [6 x i8] c"ready\0A"

declare i64 @write(i32, i8*, i64)

define double @jitted_work(double %x) noinline {
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %v = phi double [%x, %entry], [%sum, %loop]
  %product = fmul double %v, 9.9e-01
  %quotient = fdiv double 1.0, %product
  %sum = fadd double %product, %quotient
  %next = add i64 %i, 1
  %continue = icmp ult i64 %next, 100000
  br i1 %continue, label %loop, label %end
end:
  ret double %sum
}

define i32 @main() {
entry:
  %written = call i64 @write(i32 1, i8* getelementptr ([6 x i8], [6 x i8]* @ready, i64 0, i64 0), i64 6)
  br label %loop
loop:
  %v = phi double [1.0, %entry], [%sum, %loop]
  %sum = call double @jitted_work(double %v)
  br label %loop
}
