; What single rows do. Names behind a dollar sign are filled in by walk_image.py.

declare i64 @ticks()

; Sets what a row has to do: counts, first and last workgroup or byte.
define void @prepare(ptr %job, ptr %row, ptr %share) alwaysinline {
start:
  %begin.at = getelementptr i8, ptr %share, i64 $share.begin
  store i64 0, ptr %begin.at
  %end.at = getelementptr i8, ptr %share, i64 $share.end
  %addresses.at = getelementptr i8, ptr %job, i64 $job.addresses
  %addresses = load ptr, ptr %addresses.at
  %lengths.at = getelementptr i8, ptr %job, i64 $job.lengths
  %lengths = load ptr, ptr %lengths.at
  %operand.at = getelementptr i8, ptr %row, i64 $command.operand
  %operand = load i32, ptr %operand.at
  %kind = load i32, ptr %row
  switch i32 %kind, label %nothing [
    i32 $KIND_DISPATCH, label %direct
    i32 $KIND_DISPATCH_INDIRECT, label %indirect
    i32 $KIND_FILL, label %fill
    i32 $KIND_COPY, label %copy
    i32 $KIND_UPDATE, label %update
  ]
nothing:
  store i64 0, ptr %end.at
  ret void
direct:
  %direct.at = getelementptr i8, ptr %row, i64 $command.count_x
  br label %counts
indirect:
  %bindings.at = getelementptr i8, ptr %row, i64 $command.operand_count
  %bindings = load i32, ptr %bindings.at
  %behind = add i32 %operand, %bindings
  %indirect.at = getelementptr i64, ptr %addresses, i32 %behind
  %indirect.address = load ptr, ptr %indirect.at
  br label %counts
counts:
  %counts.at = phi ptr [ %direct.at, %direct ], [ %indirect.address, %indirect ]
  %y.at = getelementptr i32, ptr %counts.at, i64 1
  %z.at = getelementptr i32, ptr %counts.at, i64 2
  %x = load i32, ptr %counts.at
  %y = load i32, ptr %y.at
  %z = load i32, ptr %z.at
  %share.x = getelementptr i8, ptr %share, i64 $share.count_x
  store i32 %x, ptr %share.x
  %share.y = getelementptr i8, ptr %share, i64 $share.count_y
  store i32 %y, ptr %share.y
  %share.z = getelementptr i8, ptr %share, i64 $share.count_z
  store i32 %z, ptr %share.z
  %x64 = zext i32 %x to i64
  %y64 = zext i32 %y to i64
  %z64 = zext i32 %z to i64
  %xy = mul i64 %x64, %y64
  %xy.big = icmp ugt i64 %xy, $MAXIMUM_WORKGROUPS
  %xy.limited = select i1 %xy.big, i64 0, i64 %xy
  %z.big = icmp ugt i32 %z, $MAXIMUM_COUNT_Z
  %z.limited = select i1 %z.big, i64 0, i64 %z64
  %xyz = mul i64 %xy.limited, %z.limited
  %xyz.big = icmp ugt i64 %xyz, $MAXIMUM_WORKGROUPS
  %big0 = or i1 %xy.big, %z.big
  %big = or i1 %big0, %xyz.big
  br i1 %big, label %refused, label %groups
refused:
  store i64 0, ptr %end.at
  call void @fail(ptr %job, ptr %row, i64 $FAILED_COUNTS, i32 0, i32 %x, i32 %y, i32 %z)
  ret void
groups:
  store i64 %xyz, ptr %end.at
  ret void
fill:
  %fill.at = getelementptr i64, ptr %lengths, i32 %operand
  %fill.length = load i64, ptr %fill.at
  store i64 %fill.length, ptr %end.at
  ret void
copy:
  %source.at = getelementptr i64, ptr %lengths, i32 %operand
  %source.length = load i64, ptr %source.at
  %target = add i32 %operand, 1
  %target.at = getelementptr i64, ptr %lengths, i32 %target
  %target.length = load i64, ptr %target.at
  %copy.short = icmp ult i64 %source.length, %target.length
  %copy.length = select i1 %copy.short, i64 %source.length, i64 %target.length
  store i64 %copy.length, ptr %end.at
  ret void
update:
  %update.at = getelementptr i64, ptr %lengths, i32 %operand
  %update.room = load i64, ptr %update.at
  %data.at = getelementptr i8, ptr %row, i64 $command.data_length
  %data32 = load i32, ptr %data.at
  %data = zext i32 %data32 to i64
  %update.short = icmp ult i64 %update.room, %data
  %update.length = select i1 %update.short, i64 %update.room, i64 %data
  store i64 %update.length, ptr %end.at
  ret void
}

; Workgroups or bytes [first, last) of a row. With a team, the cost of a workgroup is averaged.
define void @run_span(ptr %job, ptr %row, ptr %share, i64 %worker, i64 %first, i64 %last) {
  %some = icmp ult i64 %first, %last
  br i1 %some, label %look, label %done
look:
  %kind = load i32, ptr %row
  %dispatch = icmp uge i32 %kind, $KIND_DISPATCH
  br i1 %dispatch, label %groups, label %bytes
bytes:
  call void @run_bytes(ptr %job, ptr %row, i64 %first, i64 %last)
  ret void
groups:
  %team.at = getelementptr i8, ptr %job, i64 $job.team
  %team = load ptr, ptr %team.at
  %alone = icmp eq ptr %team, null
  br i1 %alone, label %plain, label %measured
plain:
  call void @run_workgroups(ptr %job, ptr %row, ptr %share, i64 %worker, i64 %first, i64 %last)
  ret void
measured:
  %start = call i64 @ticks()
  call void @run_workgroups(ptr %job, ptr %row, ptr %share, i64 %worker, i64 %first, i64 %last)
  %stop = call i64 @ticks()
  %elapsed = sub i64 %stop, %start
  %scaled = shl i64 %elapsed, 10
  %count = sub i64 %last, %first
  %sample0 = udiv i64 %scaled, %count
  %sample = or i64 %sample0, 1
  %entry.at = getelementptr i8, ptr %row, i64 $command.entry
  %entry = load ptr, ptr %entry.at
  %cost.at = getelementptr i8, ptr %entry, i64 $entry.cost
  %cost = load atomic i64, ptr %cost.at monotonic, align 8
  %new = icmp eq i64 %cost, 0
  %difference = sub i64 %sample, %cost
  ; Down faster than up: a thread that lost its processor meanwhile says nothing about the function.
  %less = icmp slt i64 %difference, 0
  %weight = select i1 %less, i64 2, i64 3
  %step = ashr i64 %difference, %weight
  %moved = add i64 %cost, %step
  %kept = or i64 %moved, 1
  %average = select i1 %new, i64 %sample, i64 %kept
  store atomic i64 %average, ptr %cost.at monotonic, align 8
  ret void
done:
  ret void
}

define internal void @run_workgroups(ptr %job, ptr %row, ptr %share, i64 %worker, i64 %first, i64 %last) {
start:
  %dispatch = alloca [56 x i8], align 64
  %group = alloca [48 x i8], align 64
  %entry.at = getelementptr i8, ptr %row, i64 $command.entry
  %entry = load ptr, ptr %entry.at
  %code.at = getelementptr i8, ptr %entry, i64 $entry.code
  %code = load ptr, ptr %code.at
  %environment.at = getelementptr i8, ptr %entry, i64 $entry.environment
  %environment = load ptr, ptr %environment.at

  ; Dispatch state: workgroup size 1, 1, 1; counts; constants; bindings; where the job's failure is.
  %share.x = getelementptr i8, ptr %share, i64 $share.count_x
  %nx = load i32, ptr %share.x
  %share.y = getelementptr i8, ptr %share, i64 $share.count_y
  %ny = load i32, ptr %share.y
  %share.z = getelementptr i8, ptr %share, i64 $share.count_z
  %nz = load i16, ptr %share.z
  %size.y = getelementptr i8, ptr %dispatch, i64 4
  %size.z = getelementptr i8, ptr %dispatch, i64 8
  store i32 1, ptr %dispatch
  store i32 1, ptr %size.y
  store i16 1, ptr %size.z
  %constant_count.at = getelementptr i8, ptr %row, i64 $command.constant_count
  %constant_count = load i16, ptr %constant_count.at
  %state.constant_count = getelementptr i8, ptr %dispatch, i64 10
  store i16 %constant_count, ptr %state.constant_count
  %state.x = getelementptr i8, ptr %dispatch, i64 12
  store i32 %nx, ptr %state.x
  %state.y = getelementptr i8, ptr %dispatch, i64 16
  store i32 %ny, ptr %state.y
  %state.z = getelementptr i8, ptr %dispatch, i64 20
  store i16 %nz, ptr %state.z
  %concurrency.at = getelementptr i8, ptr %job, i64 $job.concurrency
  %concurrency = load i8, ptr %concurrency.at
  %state.concurrency = getelementptr i8, ptr %dispatch, i64 22
  store i8 %concurrency, ptr %state.concurrency
  %binding_count.at = getelementptr i8, ptr %row, i64 $command.operand_count
  %binding_count = load i8, ptr %binding_count.at
  %state.binding_count = getelementptr i8, ptr %dispatch, i64 23
  store i8 %binding_count, ptr %state.binding_count
  %list.at = getelementptr i8, ptr %job, i64 $job.list
  %list = load ptr, ptr %list.at
  %constants.at = getelementptr i8, ptr %list, i64 $list.constants
  %constants.base = load ptr, ptr %constants.at
  %constant.at = getelementptr i8, ptr %row, i64 $command.constant
  %constant = load i32, ptr %constant.at
  %constants = getelementptr i32, ptr %constants.base, i32 %constant
  %state.constants = getelementptr i8, ptr %dispatch, i64 24
  store ptr %constants, ptr %state.constants
  %operand.at = getelementptr i8, ptr %row, i64 $command.operand
  %operand = load i32, ptr %operand.at
  %addresses.at = getelementptr i8, ptr %job, i64 $job.addresses
  %addresses.base = load ptr, ptr %addresses.at
  %addresses = getelementptr i64, ptr %addresses.base, i32 %operand
  %state.addresses = getelementptr i8, ptr %dispatch, i64 32
  store ptr %addresses, ptr %state.addresses
  %lengths.at = getelementptr i8, ptr %job, i64 $job.lengths
  %lengths.base = load ptr, ptr %lengths.at
  %lengths = getelementptr i64, ptr %lengths.base, i32 %operand
  %state.lengths = getelementptr i8, ptr %dispatch, i64 40
  store ptr %lengths, ptr %state.lengths
  %failure.at = getelementptr i8, ptr %job, i64 $job.failure
  %state.failure = getelementptr i8, ptr %dispatch, i64 48
  store ptr %failure.at, ptr %state.failure

  ; Workgroup state: id; processor; local memory.
  %group.y = getelementptr i8, ptr %group, i64 4
  %group.z = getelementptr i8, ptr %group, i64 8
  %reserved = getelementptr i8, ptr %group, i64 10
  store i16 0, ptr %reserved
  %worker32 = trunc i64 %worker to i32
  %processor = getelementptr i8, ptr %group, i64 12
  store i32 %worker32, ptr %processor
  %local_size.at = getelementptr i8, ptr %entry, i64 $entry.local_memory
  %local_size = load i32, ptr %local_size.at
  %local.at = getelementptr i8, ptr %job, i64 $job.local_memory
  %local.base = load ptr, ptr %local.at
  %stride.at = getelementptr i8, ptr %job, i64 $job.local_stride
  %stride = load i64, ptr %stride.at
  %local.offset = mul i64 %worker, %stride
  %local.own = getelementptr i8, ptr %local.base, i64 %local.offset
  %local.none = icmp eq i32 %local_size, 0
  %local = select i1 %local.none, ptr null, ptr %local.own
  %state.local = getelementptr i8, ptr %group, i64 16
  store ptr %local, ptr %state.local
  %state.local_size = getelementptr i8, ptr %group, i64 24
  store i64 0, ptr %state.local_size
  store i32 %local_size, ptr %state.local_size

  %flags.at = getelementptr i8, ptr %entry, i64 $entry.flags
  %flags = load i32, ptr %flags.at
  %span_bit = and i32 %flags, $ENTRY_SPAN
  %one_call = icmp ne i32 %span_bit, 0
  br i1 %one_call, label %span, label %single
span:
  %span.first = getelementptr i8, ptr %group, i64 $SPAN_FIRST
  store i64 %first, ptr %span.first
  %span.last = getelementptr i8, ptr %group, i64 $SPAN_LAST
  store i64 %last, ptr %span.last
  store i32 0, ptr %group
  store i32 0, ptr %group.y
  store i16 0, ptr %group.z
  %span.result = call i32 %code(ptr %environment, ptr %dispatch, ptr %group)
  %span.bad = icmp ne i32 %span.result, 0
  br i1 %span.bad, label %span.failed, label %done
span.failed:
  %failed.x = load i32, ptr %group
  %failed.y = load i32, ptr %group.y
  %failed.z16 = load i16, ptr %group.z
  %failed.z = zext i16 %failed.z16 to i32
  call void @fail(ptr %job, ptr %row, i64 $FAILED_FUNCTION, i32 %span.result, i32 %failed.x, i32 %failed.y, i32 %failed.z)
  ret void
single:
  %at_start = icmp eq i64 %first, 0
  br i1 %at_start, label %loop, label %seek
seek:
  %nx64 = zext i32 %nx to i64
  %ny64 = zext i32 %ny to i64
  %line = udiv i64 %first, %nx64
  %x.seek64 = urem i64 %first, %nx64
  %z.seek64 = udiv i64 %line, %ny64
  %y.seek64 = urem i64 %line, %ny64
  %x.seek = trunc i64 %x.seek64 to i32
  %y.seek = trunc i64 %y.seek64 to i32
  %z.seek = trunc i64 %z.seek64 to i32
  br label %loop
loop:
  %number = phi i64 [ %first, %single ], [ %first, %seek ], [ %number.next, %advance ]
  %x = phi i32 [ 0, %single ], [ %x.seek, %seek ], [ %x.next, %advance ]
  %y = phi i32 [ 0, %single ], [ %y.seek, %seek ], [ %y.next, %advance ]
  %z = phi i32 [ 0, %single ], [ %z.seek, %seek ], [ %z.next, %advance ]
  %z16 = trunc i32 %z to i16
  store i32 %x, ptr %group
  store i32 %y, ptr %group.y
  store i16 %z16, ptr %group.z
  %result = call i32 %code(ptr %environment, ptr %dispatch, ptr %group)
  %bad = icmp ne i32 %result, 0
  br i1 %bad, label %failed, label %advance
advance:
  %number.next = add i64 %number, 1
  %x1 = add i32 %x, 1
  %x.wrap = icmp eq i32 %x1, %nx
  %x.next = select i1 %x.wrap, i32 0, i32 %x1
  %x.carry = zext i1 %x.wrap to i32
  %y1 = add i32 %y, %x.carry
  %y.wrap = icmp eq i32 %y1, %ny
  %y.next = select i1 %y.wrap, i32 0, i32 %y1
  %y.carry = zext i1 %y.wrap to i32
  %z.next = add i32 %z, %y.carry
  %more = icmp ult i64 %number.next, %last
  br i1 %more, label %loop, label %done
failed:
  call void @fail(ptr %job, ptr %row, i64 $FAILED_FUNCTION, i32 %result, i32 %x, i32 %y, i32 %z)
  ret void
done:
  ret void
}

define internal void @run_bytes(ptr %job, ptr %row, i64 %first, i64 %last) "no-builtins" {
start:
  %count = sub i64 %last, %first
  %functions.at = getelementptr i8, ptr %job, i64 $job.functions
  %functions = load ptr, ptr %functions.at
  %memmove.at = getelementptr i8, ptr %functions, i64 $functions.memmove
  %memmove = load ptr, ptr %memmove.at
  %addresses.at = getelementptr i8, ptr %job, i64 $job.addresses
  %addresses = load ptr, ptr %addresses.at
  %operand.at = getelementptr i8, ptr %row, i64 $command.operand
  %operand = load i32, ptr %operand.at
  %range.at = getelementptr i64, ptr %addresses, i32 %operand
  %range = load ptr, ptr %range.at
  %bytes = getelementptr i8, ptr %range, i64 %first
  %kind = load i32, ptr %row
  switch i32 %kind, label %done [
    i32 $KIND_FILL, label %fill
    i32 $KIND_COPY, label %copy
    i32 $KIND_UPDATE, label %update
  ]
copy:
  %second.at = getelementptr i64, ptr %range.at, i64 1
  %second = load ptr, ptr %second.at
  %target = getelementptr i8, ptr %second, i64 %first
  %copied = call ptr %memmove(ptr %target, ptr %bytes, i64 %count)
  ret void
update:
  %list.at = getelementptr i8, ptr %job, i64 $job.list
  %list = load ptr, ptr %list.at
  %data.at = getelementptr i8, ptr %list, i64 $list.data
  %data.base = load ptr, ptr %data.at
  %offset.at = getelementptr i8, ptr %row, i64 $command.data
  %offset = load i64, ptr %offset.at
  %data = getelementptr i8, ptr %data.base, i64 %offset
  %data.first = getelementptr i8, ptr %data, i64 %first
  %updated = call ptr %memmove(ptr %bytes, ptr %data.first, i64 %count)
  ret void
fill:
  %pattern.at = getelementptr i8, ptr %row, i64 $command.pattern
  %pattern = load i32, ptr %pattern.at
  %byte = and i32 %pattern, 255
  %repeated = mul i32 %byte, 16843009
  %uniform = icmp eq i32 %pattern, %repeated
  br i1 %uniform, label %set, label %words
set:
  %memset.at = getelementptr i8, ptr %functions, i64 $functions.memset
  %memset = load ptr, ptr %memset.at
  %filled = call ptr %memset(ptr %bytes, i32 %byte, i64 %count)
  ret void
words:
  %low = zext i32 %pattern to i64
  %high = shl i64 %low, 32
  %word = or i64 %low, %high
  %whole = and i64 %count, -8
  br label %next
next:
  %position = phi i64 [ 0, %words ], [ %position.next, %store ]
  %more = icmp ult i64 %position, %whole
  br i1 %more, label %store, label %tail
store:
  %place = getelementptr i8, ptr %bytes, i64 %position
  store i64 %word, ptr %place, align 1
  %position.next = add i64 %position, 8
  br label %next
tail:
  %tail.position = phi i64 [ %whole, %next ], [ %tail.next, %tail.store ]
  %tail.more = icmp ult i64 %tail.position, %count
  br i1 %tail.more, label %tail.store, label %done
tail.store:
  %tail.place = getelementptr i8, ptr %bytes, i64 %tail.position
  %tail.index = and i64 %tail.position, 7
  %tail.bits = mul i64 %tail.index, 8
  %tail.word = lshr i64 %word, %tail.bits
  %tail.byte = trunc i64 %tail.word to i8
  store i8 %tail.byte, ptr %tail.place
  %tail.next = add i64 %tail.position, 1
  br label %tail
done:
  ret void
}

; Only the first failure of a job is recorded.
define internal void @fail(ptr %job, ptr %row, i64 %kind, i32 %code, i32 %x, i32 %y, i32 %z) noinline cold {
  %failure = getelementptr i8, ptr %job, i64 $job.failure
  %swap = cmpxchg ptr %failure, i64 0, i64 %kind seq_cst seq_cst
  %won = extractvalue { i64, i1 } %swap, 1
  br i1 %won, label %record, label %done
record:
  %list.at = getelementptr i8, ptr %job, i64 $job.list
  %list = load ptr, ptr %list.at
  %rows.at = getelementptr i8, ptr %list, i64 $list.rows
  %rows = load i64, ptr %rows.at
  %row.address = ptrtoint ptr %row to i64
  %offset = sub i64 %row.address, %rows
  %number = udiv i64 %offset, $command.size
  %row.at = getelementptr i8, ptr %job, i64 $job.failed_row
  store i64 %number, ptr %row.at
  %code64 = sext i32 %code to i64
  %code.at = getelementptr i8, ptr %job, i64 $job.failed_code
  store i64 %code64, ptr %code.at
  %x64 = zext i32 %x to i64
  %x.at = getelementptr i8, ptr %job, i64 $job.failed_x
  store i64 %x64, ptr %x.at
  %y64 = zext i32 %y to i64
  %y.at = getelementptr i8, ptr %job, i64 $job.failed_y
  store i64 %y64, ptr %y.at
  %z64 = zext i32 %z to i64
  %z.at = getelementptr i8, ptr %job, i64 $job.failed_z
  store i64 %z64, ptr %z.at
  br label %done
done:
  ret void
}
