; Sharing a command list among the threads of a team. Names behind a dollar sign are filled in by walk_image.py.
;
; run_shared(job, team)  what the submitting thread does
; serve(team, worker)    what a worker thread does until it is dismissed
; dismiss(team)          ends the workers

declare i64 @enter_kernels()
declare void @leave_kernels(i64)
declare void @pause()
declare i64 @ticks()
declare void @prepare(ptr, ptr, ptr)
declare void @run_span(ptr, ptr, ptr, i64, i64, i64)
declare double @estimate_share(ptr, ptr, ptr)
declare i64 @llvm.fptosi.sat.i64.f64(double)
declare i64 @llvm.sadd.sat.i64(i64, i64)
declare i64 @llvm.umax.i64(i64, i64)
declare i64 @llvm.umin.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @futex_call()

; Group by group: rows between two barriers may run together.
define void @run_shared(ptr %job, ptr %team) {
start:
  %list.at = getelementptr i8, ptr %job, i64 $job.list
  %list = load ptr, ptr %list.at
  %rows.at = getelementptr i8, ptr %list, i64 $list.rows
  %rows = load ptr, ptr %rows.at
  %count.at = getelementptr i8, ptr %list, i64 $list.row_count
  %count = load i64, ptr %count.at
  %bytes = mul i64 %count, $command.size
  %last = getelementptr i8, ptr %rows, i64 %bytes
  %failure.at = getelementptr i8, ptr %job, i64 $job.failure
  br label %group
group:
  %begin = phi ptr [ %rows, %start ], [ %behind, %ran ]
  %more = icmp ult ptr %begin, %last
  br i1 %more, label %scan, label %done
scan:
  %end = phi ptr [ %begin, %group ], [ %following, %inside ]
  %within = icmp ult ptr %end, %last
  br i1 %within, label %look, label %found
look:
  %kind = load i32, ptr %end
  %barrier = icmp eq i32 %kind, $KIND_BARRIER
  br i1 %barrier, label %found, label %inside
inside:
  %following = getelementptr i8, ptr %end, i64 $command.size
  br label %scan
found:
  call void @run_group(ptr %job, ptr %team, ptr %begin, ptr %end)
  %failure = load atomic i64, ptr %failure.at monotonic, align 8
  %failed = icmp ne i64 %failure, 0
  br i1 %failed, label %done, label %ran
ran:
  %behind = getelementptr i8, ptr %end, i64 $command.size
  br label %group
done:
  ret void
}

define internal void @run_group(ptr %job, ptr %team, ptr %begin, ptr %end) {
start:
  %shares.at = getelementptr i8, ptr %job, i64 $job.shares
  %shares = load ptr, ptr %shares.at
  %failure.at = getelementptr i8, ptr %job, i64 $job.failure
  br label %estimate
estimate:
  %row = phi ptr [ %begin, %start ], [ %row.next, %estimated ]
  %share = phi ptr [ %shares, %start ], [ %share.next, %estimated ]
  %total = phi double [ 0.0, %start ], [ %total.next, %estimated ]
  %more = icmp ult ptr %row, %end
  br i1 %more, label %one, label %decide
one:
  call void @prepare(ptr %job, ptr %row, ptr %share)
  call void @try_first(ptr %job, ptr %row, ptr %share)
  %left = call double @estimate_share(ptr %job, ptr %row, ptr %share)
  %failure = load atomic i64, ptr %failure.at monotonic, align 8
  %failed = icmp ne i64 %failure, 0
  br i1 %failed, label %done, label %estimated
estimated:
  %total.next = fadd double %total, %left
  %row.next = getelementptr i8, ptr %row, i64 $command.size
  %share.next = getelementptr i8, ptr %share, i64 $share.size
  br label %estimate

decide:
  %parked.at = getelementptr i8, ptr %team, i64 $team.parked
  %parked = load atomic i64, ptr %parked.at monotonic, align 64
  %workers.at = getelementptr i8, ptr %team, i64 $team.workers
  %workers = load i64, ptr %workers.at
  %asleep = icmp uge i64 %parked, %workers
  %spinning.at = getelementptr i8, ptr %team, i64 $team.spinning_ticks
  %spinning_ticks = load i64, ptr %spinning.at
  %spinning = uitofp i64 %spinning_ticks to double
  %large = fcmp oge double %total, %spinning
  %total_ticks = call i64 @llvm.fptosi.sat.i64.f64(double %total)
  br i1 %large, label %sleep_look, label %inline
sleep_look:
  br i1 %asleep, label %owe, label %divide

; Helpers sleep: what they could have shared lately adds up until waking them has paid for itself.
owe:
  %parked_ticks.at = getelementptr i8, ptr %team, i64 $team.parked_ticks
  %parked_ticks = load i64, ptr %parked_ticks.at
  %owed.at = getelementptr i8, ptr %team, i64 $team.owed
  %owed = load i64, ptr %owed.at
  %owed_since.at = getelementptr i8, ptr %team, i64 $team.owed_since
  %owed_since = load i64, ptr %owed_since.at
  %now = call i64 @ticks()
  store i64 %now, ptr %owed_since.at
  %idle = sub i64 %now, %owed_since
  %window = shl i64 %parked_ticks, 2
  %forgotten = icmp ugt i64 %idle, %window
  %kept = select i1 %forgotten, i64 0, i64 %owed
  %sum = call i64 @llvm.sadd.sat.i64(i64 %kept, i64 %total_ticks)
  %enough = icmp uge i64 %sum, %parked_ticks
  %left_owed = select i1 %enough, i64 0, i64 %sum
  store i64 %left_owed, ptr %owed.at
  br i1 %enough, label %divide, label %inline

divide:
  %worth = phi i64 [ %total_ticks, %sleep_look ], [ %sum, %owe ]
  %chunks = call i64 @divide(ptr %job, ptr %team, ptr %begin, ptr %end)
  %several = icmp ugt i64 %chunks, 1
  %fits = icmp ult i64 %chunks, 2147483648
  %shared = and i1 %several, %fits
  br i1 %shared, label %post, label %inline
post:
  call void @post(ptr %job, ptr %team, ptr %begin, i64 %chunks, i64 %worth)
  call void @claim_chunks(ptr %team, i64 0)
  call void @wait_for_chunks(ptr %team, i64 %chunks)
  br label %done

inline:
  br label %next
next:
  %row2 = phi ptr [ %begin, %inline ], [ %row2.next, %ran ]
  %share2 = phi ptr [ %shares, %inline ], [ %share2.next, %ran ]
  %more2 = icmp ult ptr %row2, %end
  br i1 %more2, label %body, label %done
body:
  %from.at = getelementptr i8, ptr %share2, i64 $share.begin
  %from = load i64, ptr %from.at
  %to.at = getelementptr i8, ptr %share2, i64 $share.end
  %to = load i64, ptr %to.at
  call void @run_span(ptr %job, ptr %row2, ptr %share2, i64 0, i64 %from, i64 %to)
  %failure2 = load atomic i64, ptr %failure.at monotonic, align 8
  %failed2 = icmp ne i64 %failure2, 0
  br i1 %failed2, label %done, label %ran
ran:
  %row2.next = getelementptr i8, ptr %row2, i64 $command.size
  %share2.next = getelementptr i8, ptr %share2, i64 $share.size
  br label %next
done:
  ret void
}

; Runs the first workgroup of a function that has never been run, so that its cost is known.
define internal void @try_first(ptr %job, ptr %row, ptr %share) {
  %kind = load i32, ptr %row
  %dispatch = icmp uge i32 %kind, $KIND_DISPATCH
  br i1 %dispatch, label %look, label %done
look:
  %entry.at = getelementptr i8, ptr %row, i64 $command.entry
  %entry = load ptr, ptr %entry.at
  %cost.at = getelementptr i8, ptr %entry, i64 $entry.cost
  %cost = load atomic i64, ptr %cost.at monotonic, align 8
  %unknown = icmp eq i64 %cost, 0
  %units.at = getelementptr i8, ptr %share, i64 $share.end
  %units = load i64, ptr %units.at
  %several = icmp ugt i64 %units, 1
  %try = and i1 %unknown, %several
  br i1 %try, label %run, label %done
run:
  call void @run_span(ptr %job, ptr %row, ptr %share, i64 0, i64 0, i64 1)
  %begin.at = getelementptr i8, ptr %share, i64 $share.begin
  store i64 1, ptr %begin.at
  br label %done
done:
  ret void
}

; Numbers the chunks of a group; returns how many there are. None is smaller than half of what is worth sharing (ticks
; per 1024 workgroups, so half of it times 1024): claims of many threads queue up at one cache line.
define internal i64 @divide(ptr %job, ptr %team, ptr %begin, ptr %end) {
start:
  %shares.at = getelementptr i8, ptr %job, i64 $job.shares
  %shares = load ptr, ptr %shares.at
  %workers.at = getelementptr i8, ptr %team, i64 $team.workers
  %workers = load i64, ptr %workers.at
  %threads = add i64 %workers, 1
  %pieces = mul i64 %threads, $CHUNKS_PER_THREAD
  %spinning.at = getelementptr i8, ptr %team, i64 $team.spinning_ticks
  %spinning_ticks = load i64, ptr %spinning.at
  %least_scaled = shl i64 %spinning_ticks, 9
  br label %next
next:
  %row = phi ptr [ %begin, %start ], [ %row.next, %numbered ]
  %share = phi ptr [ %shares, %start ], [ %share.next, %numbered ]
  %chunks = phi i64 [ 0, %start ], [ %chunks.next, %numbered ]
  %chunk.at = getelementptr i8, ptr %share, i64 $share.chunk
  store i64 %chunks, ptr %chunk.at
  %more = icmp ult ptr %row, %end
  br i1 %more, label %body, label %done
body:
  %from.at = getelementptr i8, ptr %share, i64 $share.begin
  %from = load i64, ptr %from.at
  %to.at = getelementptr i8, ptr %share, i64 $share.end
  %to = load i64, ptr %to.at
  %units = sub i64 %to, %from
  %rounded = add i64 %units, %pieces
  %rounded1 = sub i64 %rounded, 1
  %even = udiv i64 %rounded1, %pieces
  %kind = load i32, ptr %row
  %dispatch = icmp uge i32 %kind, $KIND_DISPATCH
  br i1 %dispatch, label %groups, label %bytes
bytes:
  %lines = add i64 %even, 63
  %aligned = and i64 %lines, -64
  %small = icmp ult i64 %aligned, $BYTES_CHUNK
  %byte_size = select i1 %small, i64 $BYTES_CHUNK, i64 %aligned
  br label %numbered
groups:
  %entry.at = getelementptr i8, ptr %row, i64 $command.entry
  %entry = load ptr, ptr %entry.at
  %flags.at = getelementptr i8, ptr %entry, i64 $entry.flags
  %flags = load i32, ptr %flags.at
  %sequential_bit = and i32 %flags, $ENTRY_SEQUENTIAL
  %sequential = icmp ne i32 %sequential_bit, 0
  %cost.at = getelementptr i8, ptr %entry, i64 $entry.cost
  %cost = load atomic i64, ptr %cost.at monotonic, align 8
  %known_cost = or i64 %cost, 1
  %least = udiv i64 %least_scaled, %known_cost
  %large_enough = call i64 @llvm.umax.i64(i64 %even, i64 %least)
  %group_size = select i1 %sequential, i64 %units, i64 %large_enough
  br label %numbered
numbered:
  %size0 = phi i64 [ %byte_size, %bytes ], [ %group_size, %groups ]
  %empty = icmp eq i64 %size0, 0
  %size = select i1 %empty, i64 1, i64 %size0
  %size.at = getelementptr i8, ptr %share, i64 $share.chunk_size
  store i64 %size, ptr %size.at
  %up = add i64 %units, %size
  %up1 = sub i64 %up, 1
  %count = udiv i64 %up1, %size
  %chunks.next = add i64 %chunks, %count
  %row.next = getelementptr i8, ptr %row, i64 $command.size
  %share.next = getelementptr i8, ptr %share, i64 $share.size
  br label %next
done:
  ret i64 %chunks
}

; Opens a group for the team and wakes as many workers as there are chunks for, but for each a quarter of what is
; worth waking one: waking takes the submitting thread a microsecond or two each, and spinning ones come anyway.
define internal void @post(ptr %job, ptr %team, ptr %begin, i64 %chunks, i64 %worth) {
start:
  %job.at = getelementptr i8, ptr %team, i64 $team.job
  store ptr %job, ptr %job.at
  %begin.at = getelementptr i8, ptr %team, i64 $team.group_begin
  store ptr %begin, ptr %begin.at
  %functions.at = getelementptr i8, ptr %team, i64 $team.functions
  %functions = load ptr, ptr %functions.at
  %getcpu.at = getelementptr i8, ptr %functions, i64 $functions.sched_getcpu
  %getcpu = load ptr, ptr %getcpu.at
  %processor = call i32 %getcpu()
  %processor64 = sext i32 %processor to i64
  %submitter.at = getelementptr i8, ptr %team, i64 $team.submitter
  store atomic i64 %processor64, ptr %submitter.at monotonic, align 8
  %finished.at = getelementptr i8, ptr %team, i64 $team.finished
  store atomic i64 0, ptr %finished.at monotonic, align 64
  %generation.at = getelementptr i8, ptr %team, i64 $team.generation
  %generation = load i64, ptr %generation.at
  %grown = add i64 %generation, 1
  %wrapped = and i64 %grown, 4294967295
  store i64 %wrapped, ptr %generation.at
  %high = shl i64 %wrapped, 32
  %limit = or i64 %high, %chunks
  %limit.at = getelementptr i8, ptr %team, i64 $team.limit
  store atomic i64 %limit, ptr %limit.at release, align 8
  %claimed.at = getelementptr i8, ptr %team, i64 $team.claimed
  store atomic i64 %high, ptr %claimed.at release, align 64
  %sequence.at = getelementptr i8, ptr %team, i64 $team.sequence
  %sequence = atomicrmw add ptr %sequence.at, i64 1 seq_cst
  %parked.at = getelementptr i8, ptr %team, i64 $team.parked
  %others = sub i64 %chunks, 1
  %parked_ticks.at = getelementptr i8, ptr %team, i64 $team.parked_ticks
  %parked_ticks = load i64, ptr %parked_ticks.at
  %quarter = lshr i64 %parked_ticks, 2
  %each = or i64 %quarter, 1
  %repaid = udiv i64 %worth, %each
  %one = call i64 @llvm.umax.i64(i64 %repaid, i64 1)
  %useful = call i64 @llvm.umin.i64(i64 %one, i64 %others)
  %sleeping = load atomic i64, ptr %parked.at seq_cst, align 64
  %count = call i64 @llvm.smin.i64(i64 %sleeping, i64 %useful)
  %none = icmp sle i64 %count, 0
  br i1 %none, label %done, label %wake
wake:
  call void @wake(ptr %team, i64 %count)
  br label %done
done:
  ret void
}

; Wakes so many workers, if so many sleep, and takes them off the count.
define internal void @wake(ptr %team, i64 %count) {
  %sequence.at = getelementptr i8, ptr %team, i64 $team.sequence
  %parked.at = getelementptr i8, ptr %team, i64 $team.parked
  %woken = call i64 @futex(ptr %team, ptr %sequence.at, i64 $FUTEX_WAKE, i64 %count)
  %some = call i64 @llvm.smax.i64(i64 %woken, i64 0)
  %before = atomicrmw sub ptr %parked.at, i64 %some seq_cst
  ret void
}

define internal i64 @futex(ptr %team, ptr %word, i64 %operation, i64 %value) {
  %functions.at = getelementptr i8, ptr %team, i64 $team.functions
  %functions = load ptr, ptr %functions.at
  %syscall.at = getelementptr i8, ptr %functions, i64 $functions.syscall
  %syscall = load ptr, ptr %syscall.at
  %number = call i64 @futex_call()
  %result = call i64 (i64, ...) %syscall(i64 %number, ptr %word, i64 %operation, i64 %value, ptr null, ptr null, i64 0)
  ret i64 %result
}

; Lets the workers end.
define void @dismiss(ptr %team) {
  %stop.at = getelementptr i8, ptr %team, i64 $team.stop
  store atomic i64 1, ptr %stop.at release, align 8
  %sequence.at = getelementptr i8, ptr %team, i64 $team.sequence
  %sequence = atomicrmw add ptr %sequence.at, i64 1 seq_cst
  call void @wake(ptr %team, i64 2147483647)
  ret void
}

; Takes chunks of the open group until there are none, and only then says how many it has done. A claim is valid only
; together with a limit of the same generation; while a valid claim is not finished the group stays open, so what it
; refers to stays as it is, and all claims of one call are of one group.
define internal void @claim_chunks(ptr %team, i64 %worker) {
start:
  %claimed.at = getelementptr i8, ptr %team, i64 $team.claimed
  %limit.at = getelementptr i8, ptr %team, i64 $team.limit
  %job.at = getelementptr i8, ptr %team, i64 $team.job
  %begin.at = getelementptr i8, ptr %team, i64 $team.group_begin
  %finished.at = getelementptr i8, ptr %team, i64 $team.finished
  br label %claim
claim:
  %ours = phi i64 [ -1, %start ], [ %generation, %finish ]
  %row0 = phi ptr [ null, %start ], [ %row, %finish ]
  %share0 = phi ptr [ null, %start ], [ %share, %finish ]
  %mine = phi i64 [ 0, %start ], [ %mine.next, %finish ]
  %claim.word = atomicrmw add ptr %claimed.at, i64 1 acq_rel
  %limit = load atomic i64, ptr %limit.at acquire, align 8
  %generation = lshr i64 %claim.word, 32
  %limit.generation = lshr i64 %limit, 32
  %claim.number = and i64 %claim.word, 4294967295
  %limit.chunks = and i64 %limit, 4294967295
  %current = icmp eq i64 %generation, %limit.generation
  %exists = icmp ult i64 %claim.number, %limit.chunks
  %valid = and i1 %current, %exists
  br i1 %valid, label %group, label %leave
group:
  %job = load ptr, ptr %job.at
  %chunk = call i64 @place(ptr %job, i64 %claim.number, i64 %limit.chunks)
  %same = icmp eq i64 %generation, %ours
  br i1 %same, label %look_back, label %restart
look_back:
  %own_chunk.at = getelementptr i8, ptr %share0, i64 $share.chunk
  %own_chunk = load i64, ptr %own_chunk.at
  %forward = icmp ule i64 %own_chunk, %chunk
  br i1 %forward, label %search, label %restart
restart:
  %begin = load ptr, ptr %begin.at
  %shares.at = getelementptr i8, ptr %job, i64 $job.shares
  %shares = load ptr, ptr %shares.at
  br label %search
search:
  %row = phi ptr [ %row0, %look_back ], [ %begin, %restart ], [ %row.next, %step ]
  %share = phi ptr [ %share0, %look_back ], [ %shares, %restart ], [ %share.next, %step ]
  %share.next = getelementptr i8, ptr %share, i64 $share.size
  %next_chunk.at = getelementptr i8, ptr %share.next, i64 $share.chunk
  %next_chunk = load i64, ptr %next_chunk.at
  %behind = icmp ule i64 %next_chunk, %chunk
  br i1 %behind, label %step, label %found
step:
  %row.next = getelementptr i8, ptr %row, i64 $command.size
  br label %search
found:
  %failure.at = getelementptr i8, ptr %job, i64 $job.failure
  %failure = load atomic i64, ptr %failure.at monotonic, align 8
  %failed = icmp ne i64 %failure, 0
  br i1 %failed, label %finish, label %run
run:
  %first_chunk.at = getelementptr i8, ptr %share, i64 $share.chunk
  %first_chunk = load i64, ptr %first_chunk.at
  %size.at = getelementptr i8, ptr %share, i64 $share.chunk_size
  %size = load i64, ptr %size.at
  %from.at = getelementptr i8, ptr %share, i64 $share.begin
  %from = load i64, ptr %from.at
  %to.at = getelementptr i8, ptr %share, i64 $share.end
  %to = load i64, ptr %to.at
  %number = sub i64 %chunk, %first_chunk
  %offset = mul i64 %number, %size
  %first = add i64 %from, %offset
  %last0 = add i64 %first, %size
  %short = icmp ult i64 %to, %last0
  %last = select i1 %short, i64 %to, i64 %last0
  call void @run_span(ptr %job, ptr %row, ptr %share, i64 %worker, i64 %first, i64 %last)
  br label %finish
finish:
  %mine.next = add i64 %mine, 1
  br label %claim
leave:
  %some = icmp ne i64 %mine, 0
  br i1 %some, label %report, label %done
report:
  %before = atomicrmw add ptr %finished.at, i64 %mine acq_rel
  br label %done
done:
  ret void
}

; The chunk that a claim stands for. Claims go round as many stretches of the chunks as there are threads, so that what
; runs at the same time lies far apart: threads that write to one cache line slow each other down tenfold.
define internal i64 @place(ptr %job, i64 %claim, i64 %chunks) {
  %threads.at = getelementptr i8, ptr %job, i64 $job.concurrency
  %threads = load i64, ptr %threads.at
  %stretch = urem i64 %claim, %threads
  %index = udiv i64 %claim, %threads
  %each = udiv i64 %chunks, %threads
  %longer = urem i64 %chunks, %threads
  %before = mul i64 %stretch, %each
  %extra = call i64 @llvm.umin.i64(i64 %stretch, i64 %longer)
  %first = add i64 %before, %extra
  %chunk = add i64 %first, %index
  ret i64 %chunk
}

define internal void @wait_for_chunks(ptr %team, i64 %chunks) {
start:
  %finished.at = getelementptr i8, ptr %team, i64 $team.finished
  %functions.at = getelementptr i8, ptr %team, i64 $team.functions
  %functions = load ptr, ptr %functions.at
  %yield.at = getelementptr i8, ptr %functions, i64 $functions.sched_yield
  %yield = load ptr, ptr %yield.at
  %job.at = getelementptr i8, ptr %team, i64 $team.job
  %job = load ptr, ptr %job.at
  %look_in.at = getelementptr i8, ptr %team, i64 $team.look_in
  %look_in = load ptr, ptr %look_in.at
  %parked_ticks.at = getelementptr i8, ptr %team, i64 $team.parked_ticks
  %parked_ticks = load i64, ptr %parked_ticks.at
  %interval = shl i64 %parked_ticks, 9
  %begun = call i64 @ticks()
  br label %look
look:
  %turn = phi i64 [ 0, %start ], [ %turn.next, %wait ], [ %turn.next, %give_way ], [ %turn.next, %ask ]
  %since = phi i64 [ %begun, %start ], [ %since, %wait ], [ %since, %give_way ], [ %now, %ask ]
  %finished = load atomic i64, ptr %finished.at acquire, align 64
  %all = icmp uge i64 %finished, %chunks
  br i1 %all, label %done, label %more
more:
  %turn.next = add i64 %turn, 1
  %low = and i64 %turn.next, 1023
  %often = icmp eq i64 %low, 0
  br i1 %often, label %give_way, label %wait
wait:
  call void @pause()
  br label %look
give_way:
  %yielded = call i32 %yield()
  %now = call i64 @ticks()
  %waited = sub i64 %now, %since
  %long = icmp uge i64 %waited, %interval
  br i1 %long, label %ask, label %look
ask:
  %asked = call i64 %look_in(ptr %job)
  br label %look
done:
  ret void
}

; Sees to it that a helper is not on the submitting thread's processor: one whose home that is goes to the
; home of the first thread, which has none of its own.
define internal void @settle(ptr %team, i64 %worker, ptr %place) {
  %homes.at = getelementptr i8, ptr %team, i64 $team.homes
  %homes = load ptr, ptr %homes.at
  %own.at = getelementptr i64, ptr %homes, i64 %worker
  %own = load i64, ptr %own.at
  %has = icmp sge i64 %own, 0
  br i1 %has, label %choose, label %done
choose:
  %submitter.at = getelementptr i8, ptr %team, i64 $team.submitter
  %submitter = load atomic i64, ptr %submitter.at monotonic, align 8
  %taken = icmp eq i64 %own, %submitter
  %home = select i1 %taken, i64 0, i64 %worker
  %now = load i64, ptr %place
  %there = icmp eq i64 %home, %now
  br i1 %there, label %done, label %move
move:
  store i64 %home, ptr %place
  %masks.at = getelementptr i8, ptr %team, i64 $team.masks
  %masks = load ptr, ptr %masks.at
  %offset = mul i64 %home, $MASK_SIZE
  %mask = getelementptr i8, ptr %masks, i64 %offset
  %functions.at = getelementptr i8, ptr %team, i64 $team.functions
  %functions = load ptr, ptr %functions.at
  %setaffinity.at = getelementptr i8, ptr %functions, i64 $functions.sched_setaffinity
  %setaffinity = load ptr, ptr %setaffinity.at
  %moved = call i32 %setaffinity(i32 0, i64 $MASK_SIZE, ptr %mask)
  br label %done
done:
  ret void
}

define void @serve(ptr %team, i64 %worker) {
start:
  %place = alloca i64
  store i64 -1, ptr %place
  %sequence.at = getelementptr i8, ptr %team, i64 $team.sequence
  %parked.at = getelementptr i8, ptr %team, i64 $team.parked
  %stop.at = getelementptr i8, ptr %team, i64 $team.stop
  %spin.at = getelementptr i8, ptr %team, i64 $team.spin_ticks
  br label %look
look:
  %seen = phi i64 [ -1, %start ], [ %sequence, %work ], [ %seen, %park ], [ %seen, %withdraw ]
  %since = call i64 @ticks()
  br label %spin
spin:
  %turn = phi i64 [ 0, %look ], [ %turn.next, %again ]
  %sequence = load atomic i64, ptr %sequence.at acquire, align 64
  %news = icmp ne i64 %sequence, %seen
  br i1 %news, label %work, label %idle
work:
  call void @settle(ptr %team, i64 %worker, ptr %place)
  %mode = call i64 @enter_kernels()
  call void @claim_chunks(ptr %team, i64 %worker)
  call void @leave_kernels(i64 %mode)
  br label %look
idle:
  %stop = load atomic i64, ptr %stop.at acquire, align 8
  %stopped = icmp ne i64 %stop, 0
  br i1 %stopped, label %done, label %wait
wait:
  %now = call i64 @ticks()
  %waited = sub i64 %now, %since
  %patience = load i64, ptr %spin.at
  %long = icmp uge i64 %waited, %patience
  %turn.next = add i64 %turn, 1
  %many = icmp ugt i64 %turn.next, 100000
  %tired = or i1 %long, %many
  br i1 %tired, label %park, label %again
again:
  call void @pause()
  br label %spin

; The kernel looks at the sequence again before it lets the worker sleep: what was posted meanwhile is not missed.
park:
  %others = atomicrmw add ptr %parked.at, i64 1 seq_cst
  %slept = call i64 @futex(ptr %team, ptr %sequence.at, i64 $FUTEX_WAIT, i64 %seen)
  %woken = icmp eq i64 %slept, 0
  br i1 %woken, label %look, label %withdraw
withdraw:
  %fewer = atomicrmw sub ptr %parked.at, i64 1 seq_cst
  br label %look
done:
  ret void
}
