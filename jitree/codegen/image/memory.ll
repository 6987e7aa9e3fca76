; What LLVM calls for whole blocks of memory: an image may refer to nothing outside itself.
; "no-builtins" keeps LLVM from seeing a call of the function itself in its loop.

define ptr @memset(ptr %target, i32 %value, i64 %size) "no-builtins" nounwind {
start:
  %byte = trunc i32 %value to i8
  %one = insertelement <32 x i8> poison, i8 %byte, i64 0
  %many = shufflevector <32 x i8> %one, <32 x i8> poison, <32 x i32> zeroinitializer
  %whole = and i64 %size, -32
  br label %blocks
blocks:
  %block = phi i64 [ 0, %start ], [ %block.next, %block.body ]
  %block.more = icmp ult i64 %block, %whole
  br i1 %block.more, label %block.body, label %bytes
block.body:
  %block.at = getelementptr i8, ptr %target, i64 %block
  store <32 x i8> %many, ptr %block.at, align 1
  %block.next = add i64 %block, 32
  br label %blocks
bytes:
  %place = phi i64 [ %whole, %blocks ], [ %place.next, %byte.body ]
  %byte.more = icmp ult i64 %place, %size
  br i1 %byte.more, label %byte.body, label %done
byte.body:
  %byte.at = getelementptr i8, ptr %target, i64 %place
  store i8 %byte, ptr %byte.at
  %place.next = add i64 %place, 1
  br label %bytes
done:
  ret ptr %target
}

define ptr @memcpy(ptr %target, ptr %source, i64 %size) "no-builtins" nounwind {
start:
  %whole = and i64 %size, -32
  br label %blocks
blocks:
  %block = phi i64 [ 0, %start ], [ %block.next, %block.body ]
  %block.more = icmp ult i64 %block, %whole
  br i1 %block.more, label %block.body, label %bytes
block.body:
  %block.from = getelementptr i8, ptr %source, i64 %block
  %block.at = getelementptr i8, ptr %target, i64 %block
  %many = load <32 x i8>, ptr %block.from, align 1
  store <32 x i8> %many, ptr %block.at, align 1
  %block.next = add i64 %block, 32
  br label %blocks
bytes:
  %place = phi i64 [ %whole, %blocks ], [ %place.next, %byte.body ]
  %byte.more = icmp ult i64 %place, %size
  br i1 %byte.more, label %byte.body, label %done
byte.body:
  %byte.from = getelementptr i8, ptr %source, i64 %place
  %byte.at = getelementptr i8, ptr %target, i64 %place
  %byte = load i8, ptr %byte.from
  store i8 %byte, ptr %byte.at
  %place.next = add i64 %place, 1
  br label %bytes
done:
  ret ptr %target
}

; A target inside the source is filled from its end.
define ptr @memmove(ptr %target, ptr %source, i64 %size) "no-builtins" nounwind {
start:
  %to = ptrtoint ptr %target to i64
  %from = ptrtoint ptr %source to i64
  %distance = sub i64 %to, %from
  %inside = icmp ult i64 %distance, %size
  br i1 %inside, label %blocks, label %forward
forward:
  %copied = call ptr @memcpy(ptr %target, ptr %source, i64 %size)
  ret ptr %target
blocks:
  %left = phi i64 [ %size, %start ], [ %left.next, %block.body ]
  %block.more = icmp uge i64 %left, 32
  br i1 %block.more, label %block.body, label %bytes
block.body:
  %left.next = sub i64 %left, 32
  %block.from = getelementptr i8, ptr %source, i64 %left.next
  %block.at = getelementptr i8, ptr %target, i64 %left.next
  %many = load <32 x i8>, ptr %block.from, align 1
  store <32 x i8> %many, ptr %block.at, align 1
  br label %blocks
bytes:
  %rest = phi i64 [ %left, %blocks ], [ %rest.next, %byte.body ]
  %byte.more = icmp ne i64 %rest, 0
  br i1 %byte.more, label %byte.body, label %done
byte.body:
  %rest.next = sub i64 %rest, 1
  %byte.from = getelementptr i8, ptr %source, i64 %rest.next
  %byte.at = getelementptr i8, ptr %target, i64 %rest.next
  %byte = load i8, ptr %byte.from
  store i8 %byte, ptr %byte.at
  br label %bytes
done:
  ret ptr %target
}
