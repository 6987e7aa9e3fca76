; Runs the span of a kernel (ENTRY_SPAN): 0, or the number of a failure.
define i32 @"span.$ORDINAL"(ptr %environment, ptr %dispatch, ptr %group) nounwind {
  %result = call i32 @run_span(ptr %environment, ptr %dispatch, ptr %group, ptr @"workgroups.$ORDINAL")
  ret i32 %result
}

; Runs workgroups from one number up to another on a lane that is aimed at their memory. It stops behind a
; workgroup that has released something (WORKGROUP_LITTERED), and at one that has left (WORKGROUP_LEFT): its
; number is where it stops. This is a function by itself and calls nothing but the kernel, which is inlined:
; whatever does not change from one workgroup to the next is then read once.
define internal { i64, i32 } @"workgroups.$ORDINAL"(ptr %dispatch, ptr %lane, i64 %first, i64 %last) nounwind noinline "no-builtins" {
start:
  %state.at = getelementptr i8, ptr %lane, i64 $lane.state
  %state = load ptr, ptr %state.at
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
  %frame.end = getelementptr i8, ptr %frame, i64 $FRAMES
  %values.end = getelementptr i8, ptr %values, i64 $VALUES
  %refs.end = getelementptr i8, ptr %refs, i64 $REFS
  %fits = call i1 @room(ptr %state, ptr %frame.end, ptr %values.end, ptr %refs.end)
  br i1 %fits, label %seek, label %refuse
refuse:
  %refused0 = insertvalue { i64, i32 } poison, i64 %first, 0
  %refused = insertvalue { i64, i32 } %refused0, i32 $WORKGROUP_REFUSED, 1
  ret { i64, i32 } %refused
seek:
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
  %fuel.at = getelementptr i8, ptr %state, i64 $state.fuel
  %fuel.first = load i64, ptr %fuel.at
  %released.at = getelementptr i8, ptr %state, i64 $state.released
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
  %number = phi i64 [ %first, %seek ], [ %following, %advance ]
  %fuel = phi i64 [ %fuel.first, %seek ], [ %fuel.left, %advance ]
  %x = phi i32 [ %x.seek, %seek ], [ %x.next, %advance ]
  %y = phi i32 [ %y.seek, %seek ], [ %y.next, %advance ]
  %z = phi i32 [ %z.seek, %seek ], [ %z.next, %advance ]
  call void @retain(ptr %local)
  call void @retain(ptr %constants)
  call void @retain(ptr %bindings)
  %outcome = $CALL
  %fuel.left = extractvalue { i64 } %outcome, 0
  %is.left = icmp eq i64 %fuel.left, 0
  br i1 %is.left, label %left, label %done, !prof !{!"branch_weights", i32 1, i32 4096}
left:
  %left0 = insertvalue { i64, i32 } poison, i64 %number, 0
  %left1 = insertvalue { i64, i32 } %left0, i32 $WORKGROUP_LEFT, 1
  ret { i64, i32 } %left1
done:
  %following = add i64 %number, 1
  %released = load ptr, ptr %released.at
  %litter = icmp ne ptr %released, null
  br i1 %litter, label %littered, label %look
littered:
  %littered0 = insertvalue { i64, i32 } poison, i64 %following, 0
  %littered1 = insertvalue { i64, i32 } %littered0, i32 $WORKGROUP_LITTERED, 1
  ret { i64, i32 } %littered1
look:
  %more = icmp slt i64 %following, %last
  br i1 %more, label %advance, label %complete
advance:
  %x1 = add i32 %x, 1
  %x.wrap = icmp eq i32 %x1, %count_x
  %x.next = select i1 %x.wrap, i32 0, i32 %x1
  %x.carry = zext i1 %x.wrap to i32
  %y1 = add i32 %y, %x.carry
  %y.wrap = icmp eq i32 %y1, %count_y
  %y.next = select i1 %y.wrap, i32 0, i32 %y1
  %y.carry = zext i1 %y.wrap to i32
  %z.next = add i32 %z, %y.carry
  br label %loop
complete:
  %complete0 = insertvalue { i64, i32 } poison, i64 %last, 0
  %complete1 = insertvalue { i64, i32 } %complete0, i32 $WORKGROUP_DONE, 1
  ret { i64, i32 } %complete1
}
