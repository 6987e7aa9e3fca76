; The native walker of command lists. Names behind a dollar sign are filled in by walk_image.py.
;
; execute(job)         runs a whole list; with a team, shares what is worth it (walk_team.ll)
; estimate(job)        ticks that the list may take, -1 if nobody knows yet
; clock()              the tick counter

declare i64 @enter_kernels()
declare void @leave_kernels(i64)
declare i64 @ticks()
declare void @prepare(ptr, ptr, ptr)
declare void @run_span(ptr, ptr, ptr, i64, i64, i64)
declare void @run_shared(ptr, ptr)

define i64 @clock() {
  %now = call i64 @ticks()
  ret i64 %now
}

define i64 @execute(ptr %job) {
  %mode = call i64 @enter_kernels()
  %team.at = getelementptr i8, ptr %job, i64 $job.team
  %team = load ptr, ptr %team.at
  %alone = icmp eq ptr %team, null
  br i1 %alone, label %run, label %ask
ask:
  %busy = getelementptr i8, ptr %team, i64 $team.busy
  %swap = cmpxchg ptr %busy, i64 0, i64 1 acquire monotonic
  %mine = extractvalue { i64, i1 } %swap, 1
  br i1 %mine, label %share, label %run
share:
  call void @run_shared(ptr %job, ptr %team)
  store atomic i64 0, ptr %busy release, align 8
  br label %done
run:
  call void @run_list(ptr %job)
  br label %done
done:
  call void @leave_kernels(i64 %mode)
  %failure.at = getelementptr i8, ptr %job, i64 $job.failure
  %failure = load i64, ptr %failure.at
  ret i64 %failure
}

; Every row in order, on this thread.
define internal void @run_list(ptr %job) {
start:
  %share = alloca [$share.size x i8], align 64
  %list.at = getelementptr i8, ptr %job, i64 $job.list
  %list = load ptr, ptr %list.at
  %rows.at = getelementptr i8, ptr %list, i64 $list.rows
  %rows = load ptr, ptr %rows.at
  %count.at = getelementptr i8, ptr %list, i64 $list.row_count
  %count = load i64, ptr %count.at
  %bytes = mul i64 %count, $command.size
  %end = getelementptr i8, ptr %rows, i64 %bytes
  %failure.at = getelementptr i8, ptr %job, i64 $job.failure
  br label %next
next:
  %row = phi ptr [ %rows, %start ], [ %following, %ran ]
  %more = icmp ult ptr %row, %end
  br i1 %more, label %body, label %done
body:
  call void @prepare(ptr %job, ptr %row, ptr %share)
  %units.at = getelementptr i8, ptr %share, i64 $share.end
  %units = load i64, ptr %units.at
  call void @run_span(ptr %job, ptr %row, ptr %share, i64 0, i64 0, i64 %units)
  %failure = load atomic i64, ptr %failure.at monotonic, align 8
  %failed = icmp ne i64 %failure, 0
  br i1 %failed, label %done, label %ran
ran:
  %following = getelementptr i8, ptr %row, i64 $command.size
  br label %next
done:
  ret void
}

define i64 @estimate(ptr %job) {
start:
  %share = alloca [$share.size x i8], align 64
  %list.at = getelementptr i8, ptr %job, i64 $job.list
  %list = load ptr, ptr %list.at
  %rows.at = getelementptr i8, ptr %list, i64 $list.rows
  %rows = load ptr, ptr %rows.at
  %count.at = getelementptr i8, ptr %list, i64 $list.row_count
  %count = load i64, ptr %count.at
  %bytes = mul i64 %count, $command.size
  %end = getelementptr i8, ptr %rows, i64 %bytes
  br label %next
next:
  %row = phi ptr [ %rows, %start ], [ %row.next, %known ]
  %total = phi double [ 0.0, %start ], [ %total.next, %known ]
  %more = icmp ult ptr %row, %end
  br i1 %more, label %body, label %done
body:
  %kind = load i32, ptr %row
  switch i32 %kind, label %measured [
    i32 $KIND_DISPATCH, label %dispatch
    i32 $KIND_DISPATCH_INDIRECT, label %unknown
  ]
dispatch:
  %entry.at = getelementptr i8, ptr %row, i64 $command.entry
  %entry = load ptr, ptr %entry.at
  %cost.at = getelementptr i8, ptr %entry, i64 $entry.cost
  %cost = load atomic i64, ptr %cost.at monotonic, align 8
  %never = icmp eq i64 %cost, 0
  br i1 %never, label %unknown, label %measured
measured:
  call void @prepare(ptr %job, ptr %row, ptr %share)
  br label %known
known:
  %ticks = call double @estimate_share(ptr %job, ptr %row, ptr %share)
  %total.next = fadd double %total, %ticks
  %row.next = getelementptr i8, ptr %row, i64 $command.size
  br label %next
done:
  %result = call i64 @llvm.fptosi.sat.i64.f64(double %total)
  ret i64 %result
unknown:
  ret i64 -1
}

; Ticks that what is left of a row may take.
define double @estimate_share(ptr %job, ptr %row, ptr %share) {
  %begin.at = getelementptr i8, ptr %share, i64 $share.begin
  %begin = load i64, ptr %begin.at
  %end.at = getelementptr i8, ptr %share, i64 $share.end
  %end = load i64, ptr %end.at
  %units = sub i64 %end, %begin
  %kind = load i32, ptr %row
  %dispatch = icmp uge i32 %kind, $KIND_DISPATCH
  br i1 %dispatch, label %groups, label %bytes
bytes:
  %byte_ticks = udiv i64 %units, $BYTES_PER_TICK
  %byte_result = uitofp i64 %byte_ticks to double
  ret double %byte_result
groups:
  %entry.at = getelementptr i8, ptr %row, i64 $command.entry
  %entry = load ptr, ptr %entry.at
  %cost.at = getelementptr i8, ptr %entry, i64 $entry.cost
  %cost = load atomic i64, ptr %cost.at monotonic, align 8
  %cost_f = uitofp i64 %cost to double
  %units_f = uitofp i64 %units to double
  %product = fmul double %cost_f, %units_f
  %result = fmul double %product, 0x3F50000000000000
  ret double %result
}

declare i64 @llvm.fptosi.sat.i64.f64(double)
