; What all span functions of an executable use; vmvx_span.ll is the text of one.

declare ptr @llvm.frameaddress.p0(i32)

; Runs the workgroups of a span on a lane, and what they leave to Python.
define internal i32 @run_span(ptr %environment, ptr %dispatch, ptr %group, ptr %workgroups) nounwind noinline {
start:
  %first.at = getelementptr i8, ptr %group, i64 $group.first
  %span.first = load i64, ptr %first.at
  %last.at = getelementptr i8, ptr %group, i64 $group.last
  %last = load i64, ptr %last.at
  %some = icmp slt i64 %span.first, %last
  br i1 %some, label %take, label %nothing
nothing:
  ret i32 0
take:
  %lane = call ptr @take_lane(ptr %environment, ptr %dispatch, ptr %group)
  %none = icmp eq ptr %lane, null
  br i1 %none, label %crowded, label %prepare
crowded:
  %crowd.at = getelementptr i8, ptr %environment, i64 $environment.crowd
  %crowd = load ptr, ptr %crowd.at
  %crowd.result = call i32 %crowd(ptr %environment, ptr %dispatch, ptr %group)
  ret i32 %crowd.result
prepare:
  %state.at = getelementptr i8, ptr %lane, i64 $lane.state
  %state = load ptr, ptr %state.at
  %here = call ptr @llvm.frameaddress.p0(i32 0)
  %stack.end = getelementptr i8, ptr %here, i64 -$STACK_SIZE
  %stack.at = getelementptr i8, ptr %state, i64 $state.stack_limit
  store ptr %stack.end, ptr %stack.at
  br label %go
go:
  %first = phi i64 [ %span.first, %prepare ], [ %stopped, %swept ], [ %behind, %went.well ]
  %finished = phi i32 [ 0, %prepare ], [ %finished, %swept ], [ %finished.more, %went.well ]
  %outcome = call { i64, i32 } %workgroups(ptr %dispatch, ptr %lane, i64 %first, i64 %last)
  %stopped = extractvalue { i64, i32 } %outcome, 0
  %why = extractvalue { i64, i32 } %outcome, 1
  switch i32 %why, label %rest [
    i32 $WORKGROUP_DONE, label %complete
    i32 $WORKGROUP_LITTERED, label %sweep
    i32 $WORKGROUP_LEFT, label %finish
  ]
sweep:
  call void @recycle(ptr %lane, ptr %state)
  %swept.more = icmp slt i64 %stopped, %last
  br i1 %swept.more, label %swept, label %complete
swept:
  br label %go
finish:
  call void @store_id(ptr %dispatch, ptr %group, i64 %stopped)
  %finish.at = getelementptr i8, ptr %environment, i64 $environment.finish
  %function = load ptr, ptr %finish.at
  %result = call i32 %function(ptr %environment, ptr %dispatch, ptr %group, ptr %lane)
  %bad = icmp ne i32 %result, 0
  br i1 %bad, label %failed, label %finished.one
failed:
  store atomic i64 0, ptr %lane release, align 8
  ret i32 %result
finished.one:
  %behind = add i64 %stopped, 1
  %finished.more = add i32 %finished, 1
  %behind.more = icmp slt i64 %behind, %last
  br i1 %behind.more, label %consider, label %complete
consider:
  %often = icmp uge i32 %finished.more, $MOST_FINISHED
  br i1 %often, label %rest, label %went.well
went.well:
  br label %go
rest:
  %rest.first = phi i64 [ %stopped, %go ], [ %behind, %consider ]
  store atomic i64 0, ptr %lane release, align 8
  store i64 %rest.first, ptr %first.at
  %vm.at = getelementptr i8, ptr %environment, i64 $environment.run
  %vm = load ptr, ptr %vm.at
  %vm.result = call i32 %vm(ptr %environment, ptr %dispatch, ptr %group)
  ret i32 %vm.result
complete:
  store atomic i64 0, ptr %lane release, align 8
  ret i32 0
}

; The id of a workgroup by its number, into the workgroup state.
define internal void @store_id(ptr %dispatch, ptr %group, i64 %number) nounwind {
  %count_x.at = getelementptr i8, ptr %dispatch, i64 $dispatch.count_x
  %count_x = load i32, ptr %count_x.at
  %count_y.at = getelementptr i8, ptr %dispatch, i64 $dispatch.count_y
  %count_y = load i32, ptr %count_y.at
  %nx = zext i32 %count_x to i64
  %ny = zext i32 %count_y to i64
  %line = udiv i64 %number, %nx
  %x64 = urem i64 %number, %nx
  %z64 = udiv i64 %line, %ny
  %y64 = urem i64 %line, %ny
  %x = trunc i64 %x64 to i32
  %y = trunc i64 %y64 to i32
  %z = trunc i64 %z64 to i16
  store i32 %x, ptr %group
  %y.at = getelementptr i8, ptr %group, i64 $group.y
  store i32 %y, ptr %y.at
  %z.at = getelementptr i8, ptr %group, i64 $group.z
  store i16 %z, ptr %z.at
  ret void
}

; A lane that nobody else has, aimed at the memory of a span; null if there is none.
define internal ptr @take_lane(ptr %environment, ptr %dispatch, ptr %group) nounwind noinline {
start:
  %binding_count.at = getelementptr i8, ptr %dispatch, i64 $dispatch.binding_count
  %binding_count8 = load i8, ptr %binding_count.at
  %binding_count = zext i8 %binding_count8 to i64
  %many = icmp ugt i64 %binding_count, $MAXIMUM_BINDINGS
  br i1 %many, label %none, label %have
have:
  %lanes.at = getelementptr i8, ptr %environment, i64 $environment.lanes
  %lanes = load ptr, ptr %lanes.at
  %thread.at = getelementptr i8, ptr %group, i64 $group.processor
  %thread = load i32, ptr %thread.at
  %lane = call ptr @free_lane(ptr %lanes, i32 %thread)
  %busy = icmp eq ptr %lane, null
  br i1 %busy, label %none, label %aim
aim:
  %local.at = getelementptr i8, ptr %lane, i64 $lane.local
  %local = load ptr, ptr %local.at
  %local.address.at = getelementptr i8, ptr %group, i64 $group.local_memory
  %local.address = load ptr, ptr %local.address.at
  %local.size.at = getelementptr i8, ptr %group, i64 $group.local_size
  %local.size32 = load i32, ptr %local.size.at
  %local.size = zext i32 %local.size32 to i64
  call void @aim(ptr %local, ptr %local.address, i64 %local.size)
  %constants.at = getelementptr i8, ptr %lane, i64 $lane.constants
  %constants = load ptr, ptr %constants.at
  %words.at = getelementptr i8, ptr %dispatch, i64 $dispatch.constants
  %words = load ptr, ptr %words.at
  %word_count.at = getelementptr i8, ptr %dispatch, i64 $dispatch.constant_count
  %word_count16 = load i16, ptr %word_count.at
  %word_count = zext i16 %word_count16 to i64
  %words.size = shl i64 %word_count, 2
  call void @aim(ptr %constants, ptr %words, i64 %words.size)
  %bindings.at = getelementptr i8, ptr %lane, i64 $lane.bindings
  %bindings = load ptr, ptr %bindings.at
  %list.length.at = getelementptr i8, ptr %bindings, i64 $entry.length
  store i64 %binding_count, ptr %list.length.at
  %addresses.at = getelementptr i8, ptr %dispatch, i64 $dispatch.addresses
  %addresses = load ptr, ptr %addresses.at
  %lengths.at = getelementptr i8, ptr %dispatch, i64 $dispatch.lengths
  %lengths = load ptr, ptr %lengths.at
  br label %bind
bind:
  %binding = phi i64 [ 0, %aim ], [ %binding.next, %bind.one ]
  %more = icmp ult i64 %binding, %binding_count
  br i1 %more, label %bind.one, label %done
bind.one:
  %entry.slot = getelementptr i64, ptr %lane, i64 %binding
  %entry.at = getelementptr i8, ptr %entry.slot, i64 $lane.binding
  %entry = load ptr, ptr %entry.at
  %address.at = getelementptr ptr, ptr %addresses, i64 %binding
  %address = load ptr, ptr %address.at
  %length.at = getelementptr i64, ptr %lengths, i64 %binding
  %length = load i64, ptr %length.at
  call void @aim(ptr %entry, ptr %address, i64 %length)
  %binding.next = add i64 %binding, 1
  br label %bind
done:
  ret ptr %lane
none:
  ret ptr null
}

; Threads begin to look at different lanes.
define internal ptr @free_lane(ptr %lanes, i32 %thread) nounwind {
start:
  %count = load atomic i64, ptr %lanes acquire, align 8
  %none = icmp eq i64 %count, 0
  br i1 %none, label %busy, label %begin
begin:
  %thread64 = zext i32 %thread to i64
  %first = urem i64 %thread64, %count
  br label %look
look:
  %tried = phi i64 [ 0, %begin ], [ %tried.next, %next ]
  %index = phi i64 [ %first, %begin ], [ %index.next, %next ]
  %slot = getelementptr i64, ptr %lanes, i64 %index
  %lane.at = getelementptr i8, ptr %slot, i64 $lanes.first
  %lane = load ptr, ptr %lane.at
  %swap = cmpxchg ptr %lane, i64 0, i64 1 acquire monotonic
  %won = extractvalue { i64, i1 } %swap, 1
  br i1 %won, label %taken, label %next
next:
  %tried.next = add i64 %tried, 1
  %index1 = add i64 %index, 1
  %wraps = icmp eq i64 %index1, %count
  %index.next = select i1 %wraps, i64 0, i64 %index1
  %more = icmp ult i64 %tried.next, %count
  br i1 %more, label %look, label %busy
taken:
  ret ptr %lane
busy:
  ret ptr null
}

; Aims a buffer's handle at other memory.
define internal void @aim(ptr %entry, ptr %address, i64 %length) alwaysinline nounwind {
  %address.at = getelementptr i8, ptr %entry, i64 $entry.address
  store ptr %address, ptr %address.at
  %length.at = getelementptr i8, ptr %entry, i64 $entry.length
  store i64 %length, ptr %length.at
  ret void
}

; Takes back the scratch buffers in the list of released entries; others stay in it for Python.
define internal void @recycle(ptr %lane, ptr %state) nounwind noinline {
start:
  %released.at = getelementptr i8, ptr %state, i64 $state.released
  %head = load ptr, ptr %released.at
  store ptr null, ptr %released.at
  %scratch.at = getelementptr i8, ptr %state, i64 $state.scratch
  %scratch = load ptr, ptr %scratch.at
  br label %next
next:
  %entry = phi ptr [ %head, %start ], [ %following, %ours ], [ %following, %other ]
  %some = icmp ne ptr %entry, null
  br i1 %some, label %look, label %end
look:
  %link.at = getelementptr i8, ptr %entry, i64 $entry.link
  %following = load ptr, ptr %link.at
  %mark.at = getelementptr i8, ptr %entry, i64 $entry.usage
  %mark = load i32, ptr %mark.at
  %is.ours = icmp eq i32 %mark, $SCRATCH_MARK
  br i1 %is.ours, label %ours, label %other
ours:
  %free.at = getelementptr i8, ptr %scratch, i64 $scratch.free
  %free = load ptr, ptr %free.at
  store ptr %free, ptr %link.at
  store ptr %entry, ptr %free.at
  %taken.at = getelementptr i8, ptr %scratch, i64 $scratch.taken
  %taken = load i64, ptr %taken.at
  %fewer = sub i64 %taken, 1
  store i64 %fewer, ptr %taken.at
  br label %next
other:
  %kept = load ptr, ptr %released.at
  store ptr %kept, ptr %link.at
  store ptr %entry, ptr %released.at
  br label %next
end:
  %left.at = getelementptr i8, ptr %scratch, i64 $scratch.taken
  %left = load i64, ptr %left.at
  %empty = icmp eq i64 %left, 0
  br i1 %empty, label %reset, label %done
reset:
  %base.at = getelementptr i8, ptr %lane, i64 $lane.scratch
  %base = load ptr, ptr %base.at
  %next.at = getelementptr i8, ptr %scratch, i64 $scratch.next
  store ptr %base, ptr %next.at
  br label %done
done:
  ret void
}
