; Runs workgroups [first, last) of one kernel (ENTRY_SPAN): 0, or the number of a failure.
define i32 @"span.$ORDINAL"(ptr %environment, ptr %dispatch, ptr %group) nounwind {
start:
  %lane = call ptr @take_lane(ptr %environment, ptr %dispatch, ptr %group)
  %none = icmp eq ptr %lane, null
  br i1 %none, label %crowded, label %run
crowded:
  %crowd.at = getelementptr i8, ptr %environment, i64 $environment.crowd
  %crowd = load ptr, ptr %crowd.at
  %crowd.result = call i32 %crowd(ptr %environment, ptr %dispatch, ptr %group)
  ret i32 %crowd.result
run:
  %result = call i32 @"workgroups.$ORDINAL"(ptr %environment, ptr %dispatch, ptr %group, ptr %lane)
  store atomic i64 0, ptr %lane release, align 8
  %left = icmp slt i32 %result, 0
  br i1 %left, label %rest, label %done
rest:
  %vm.at = getelementptr i8, ptr %environment, i64 $environment.run
  %vm = load ptr, ptr %vm.at
  %vm.result = call i32 %vm(ptr %environment, ptr %dispatch, ptr %group)
  ret i32 %vm.result
done:
  ret i32 %result
}

; The same on a lane that is aimed at the span's memory. Negative: what is left of the span is to be run on the
; VM. This is a function by itself because kernels take what their handles say as unchangeable.
define internal i32 @"workgroups.$ORDINAL"(ptr %environment, ptr %dispatch, ptr %group, ptr %lane) nounwind noinline {
start:
  %state.at = getelementptr i8, ptr %lane, i64 $lane.state
  %state = load ptr, ptr %state.at
  %here = call ptr @llvm.frameaddress.p0(i32 0)
  %stack.end = getelementptr i8, ptr %here, i64 -$STACK_SIZE
  %stack.at = getelementptr i8, ptr %state, i64 $state.stack_limit
  store ptr %stack.end, ptr %stack.at
  %local.at = getelementptr i8, ptr %lane, i64 $lane.local
  %local = load ptr, ptr %local.at
  %constants.at = getelementptr i8, ptr %lane, i64 $lane.constants
  %constants = load ptr, ptr %constants.at
  %bindings.at = getelementptr i8, ptr %lane, i64 $lane.bindings
  %bindings = load ptr, ptr %bindings.at
  %frame.at = getelementptr i8, ptr %lane, i64 $lane.frame
  %frame = load ptr, ptr %frame.at
  %values.at = getelementptr i8, ptr %lane, i64 $lane.values
  %values = load ptr, ptr %values.at
  %refs.at = getelementptr i8, ptr %lane, i64 $lane.refs
  %refs = load ptr, ptr %refs.at
  %size_x = load i32, ptr %dispatch
  %size_y.at = getelementptr i8, ptr %dispatch, i64 $dispatch.size_y
  %size_y = load i32, ptr %size_y.at
  %size_z.at = getelementptr i8, ptr %dispatch, i64 $dispatch.size_z
  %size_z16 = load i16, ptr %size_z.at
  %size_z = zext i16 %size_z16 to i32
  %count_x.at = getelementptr i8, ptr %dispatch, i64 $dispatch.count_x
  %count_x = load i32, ptr %count_x.at
  %count_y.at = getelementptr i8, ptr %dispatch, i64 $dispatch.count_y
  %count_y = load i32, ptr %count_y.at
  %count_z.at = getelementptr i8, ptr %dispatch, i64 $dispatch.count_z
  %count_z16 = load i16, ptr %count_z.at
  %count_z = zext i16 %count_z16 to i32
  %first.at = getelementptr i8, ptr %group, i64 $SPAN_FIRST
  %first = load i64, ptr %first.at
  %last.at = getelementptr i8, ptr %group, i64 $SPAN_LAST
  %last = load i64, ptr %last.at
  %fuel.at = getelementptr i8, ptr %state, i64 $state.fuel
  %fuel.first = load i64, ptr %fuel.at
  %some = icmp slt i64 %first, %last
  br i1 %some, label %measure, label %complete
measure:
  %frame.end = getelementptr i8, ptr %frame, i64 $FRAMES
  %values.end = getelementptr i8, ptr %values, i64 $VALUES
  %refs.end = getelementptr i8, ptr %refs, i64 $REFS
  %fits = call i1 @room(ptr %state, ptr %frame.end, ptr %values.end, ptr %refs.end)
  br i1 %fits, label %seek, label %no.room
no.room:
  ret i32 -1
seek:
  %nx = zext i32 %count_x to i64
  %ny = zext i32 %count_y to i64
  %line = udiv i64 %first, %nx
  %x.seek64 = urem i64 %first, %nx
  %z.seek64 = udiv i64 %line, %ny
  %y.seek64 = urem i64 %line, %ny
  %x.seek = trunc i64 %x.seek64 to i32
  %y.seek = trunc i64 %y.seek64 to i32
  %z.seek = trunc i64 %z.seek64 to i32
  br label %loop
loop:
  %number = phi i64 [ %first, %seek ], [ %number.next, %advance ]
  %finished = phi i32 [ 0, %seek ], [ %finished.next, %advance ]
  %fuel = phi i64 [ %fuel.first, %seek ], [ %fuel.next, %advance ]
  %x = phi i32 [ %x.seek, %seek ], [ %x.next, %advance ]
  %y = phi i32 [ %y.seek, %seek ], [ %y.next, %advance ]
  %z = phi i32 [ %z.seek, %seek ], [ %z.next, %advance ]
  call void @retain(ptr %local)
  call void @retain(ptr %constants)
  call void @retain(ptr %bindings)
  %outcome = $CALL
  %fuel.left = extractvalue { i64 } %outcome, 0
  %left = icmp eq i64 %fuel.left, 0
  br i1 %left, label %finish, label %clean, !prof !{!"branch_weights", i32 1, i32 4096}
clean:
  %released.at = getelementptr i8, ptr %state, i64 $state.released
  %released = load ptr, ptr %released.at
  %litter = icmp ne ptr %released, null
  br i1 %litter, label %sweep, label %advance
sweep:
  call void @recycle(ptr %lane, ptr %state)
  br label %advance
finish:
  %result = call i32 @finish_workgroup(ptr %environment, ptr %dispatch, ptr %group, ptr %lane, i32 %x, i32 %y, i32 %z)
  %bad = icmp ne i32 %result, 0
  br i1 %bad, label %failed, label %went.well
failed:
  ret i32 %result
went.well:
  %fuel.now = load i64, ptr %fuel.at
  %finished1 = add i32 %finished, 1
  %often = icmp uge i32 %finished1, $MOST_FINISHED
  br i1 %often, label %give.up, label %advance
give.up:
  %following = add i64 %number, 1
  store i64 %following, ptr %first.at
  ret i32 -1
advance:
  %fuel.next = phi i64 [ %fuel.left, %clean ], [ %fuel.left, %sweep ], [ %fuel.now, %went.well ]
  %finished.next = phi i32 [ %finished, %clean ], [ %finished, %sweep ], [ %finished1, %went.well ]
  %number.next = add i64 %number, 1
  %x1 = add i32 %x, 1
  %x.wrap = icmp eq i32 %x1, %count_x
  %x.next = select i1 %x.wrap, i32 0, i32 %x1
  %x.carry = zext i1 %x.wrap to i32
  %y1 = add i32 %y, %x.carry
  %y.wrap = icmp eq i32 %y1, %count_y
  %y.next = select i1 %y.wrap, i32 0, i32 %y1
  %y.carry = zext i1 %y.wrap to i32
  %z.next = add i32 %z, %y.carry
  %more = icmp slt i64 %number.next, %last
  br i1 %more, label %loop, label %complete
complete:
  ret i32 0
}
