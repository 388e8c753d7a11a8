# For demo/run.sh if perf is forbidden: prints twelve stacks of a program that raises SIGPROF while it computes.
set debuginfod enabled off
set width 0
set confirm off
set startup-with-shell off
set print frame-arguments none
handle SIGPROF stop noprint nopass
run
set $stop = 0
while $stop < 12 && $_thread != 0
  echo === a stack\n
  bt 12
  continue
  set $stop = $stop + 1
end
