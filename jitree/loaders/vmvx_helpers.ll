; What all span functions of an executable use; vmvx_span.ll is the text of one.

declare ptr @llvm.frameaddress.p0(i32)

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

; Lets Python run the rest of a workgroup that has left machine code.
define internal i32 @finish_workgroup(ptr %environment, ptr %dispatch, ptr %group, ptr %lane, i32 %x, i32 %y, i32 %z) nounwind noinline cold {
  store i32 %x, ptr %group
  %y.at = getelementptr i8, ptr %group, i64 $group.y
  store i32 %y, ptr %y.at
  %z.at = getelementptr i8, ptr %group, i64 $group.z
  %z16 = trunc i32 %z to i16
  store i16 %z16, ptr %z.at
  %finish.at = getelementptr i8, ptr %environment, i64 $environment.finish
  %finish = load ptr, ptr %finish.at
  %result = call i32 %finish(ptr %environment, ptr %dispatch, ptr %group, ptr %lane)
  ret i32 %result
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
