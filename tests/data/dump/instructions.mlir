vm.module @m {
  vm.import private optional @ext.opt(%a : i32) -> i32
  vm.import private @ext.var(%a : i32, %b : tuple<i32, !vm.ref<?>> ...) -> i64
  vm.global.i32 private mutable @g32 = 7 : i32
  vm.global.i64 private mutable @g64 = 9 : i64
  vm.global.f32 private mutable @gf = 1.5 : f32
  vm.global.ref private mutable @gr : !vm.list<i32>
  vm.rodata private @rd dense<[1,2,3]> : tensor<3xi8>
  vm.export @lists
  vm.func @lists(%c: i32, %v64 : i64, %f : f32, %r: !vm.buffer) -> (i32, i64, f32, !vm.buffer) {
    %l = vm.list.alloc %c : (i32) -> !vm.list<i32>
    vm.list.reserve %l, %c : (!vm.list<i32>, i32)
    vm.list.resize %l, %c : (!vm.list<i32>, i32)
    %s = vm.list.size %l : (!vm.list<i32>) -> i32
    vm.list.set.i32 %l, %s, %c : (!vm.list<i32>, i32, i32)
    %e = vm.list.get.i32 %l, %s : (!vm.list<i32>, i32) -> i32
    %l64 = vm.list.alloc %c : (i32) -> !vm.list<i64>
    vm.list.set.i64 %l64, %s, %v64 : (!vm.list<i64>, i32, i64)
    %e64 = vm.list.get.i64 %l64, %s : (!vm.list<i64>, i32) -> i64
    %lf = vm.list.alloc %c : (i32) -> !vm.list<f32>
    vm.list.set.f32 %lf, %s, %f : (!vm.list<f32>, i32, f32)
    %ef = vm.list.get.f32 %lf, %s : (!vm.list<f32>, i32) -> f32
    %lr = vm.list.alloc %c : (i32) -> !vm.list<?>
    vm.list.set.ref %lr, %s, %r : (!vm.list<?>, i32, !vm.buffer)
    %er = vm.list.get.ref %lr, %s : (!vm.list<?>, i32) -> !vm.buffer
    vm.return %e, %e64, %ef, %er : i32, i64, f32, !vm.buffer
  }
  vm.export @switches
  vm.func @switches(%c: i32, %a : i32, %b: i32, %v64 : i64, %f : f32, %r: !vm.buffer, %r2: !vm.buffer) -> (i32, i64, f32, !vm.buffer) {
    %0 = vm.switch.i32 %c[%a, %b] else %a : i32
    %1 = vm.switch.i64 %c[%v64, %v64] else %v64 : i64
    %2 = vm.switch.f32 %c[%f, %f] else %f : f32
    %3 = vm.switch.ref %c[%r, %r2] else %r : !vm.buffer
    vm.return %0, %1, %2, %3 : i32, i64, f32, !vm.buffer
  }
  vm.export @misc
  vm.func @misc(%c: i32, %o : i64, %n: i64, %r: !vm.buffer, %a : !vm.ref<?>) -> (i32, i64, i32, !vm.buffer) {
    %k = vm.cast.any.ref %a : !vm.ref<?> -> !vm.buffer
    %q = vm.import.resolved @ext.opt : i32
    vm.trace "hello"(%c, %o, %k) : i32, i64, !vm.buffer
    vm.print "world\n"(%c) : i32
    %cl = vm.buffer.clone %k, %o, %n, %c : !vm.buffer -> !vm.buffer
    %cm = vm.buffer.compare %r, %o, %k, %n, %n : !vm.buffer, !vm.buffer
    %h = vm.buffer.hash %r, %o, %n : !vm.buffer -> i64
    %len = vm.buffer.length %r : !vm.buffer -> i64
    %z = vm.add.i64 %h, %len : i64
    vm.buffer.store.i8 %c, %r[%o] : i32 -> !vm.buffer
    %ee = vm.cmp.eq.ref %k, %cl : !vm.buffer
    %xx = vm.add.i32 %ee, %cm : i32
    %rod = vm.const.ref.rodata @rd : !vm.buffer
    vm.buffer.fill.i8 %r, %o, %n, %c : i32 -> !vm.buffer
    %any = vm.cast.ref.any %r : !vm.buffer -> !vm.ref<?>
    %vv = vm.call.variadic @ext.var(%c, [(%c, %any), (%c, %a)]) : (i32, tuple<i32, !vm.ref<?>> ...) -> i64
    vm.return %q, %z, %xx, %rod : i32, i64, i32, !vm.buffer
  }
  vm.export @yielding
  vm.func @yielding(%c: i32) -> i32 {
    vm.yield ^bb1
  ^bb1:
    vm.call.yieldable @callee(%c) : (i32) -> ^bb2(i32)
  ^bb2(%0 : i32):
    vm.return %0 : i32
  }
  vm.func private @callee(%c: i32) -> i32 {
    %g = vm.global.load.i32 @g32 : i32
    %f = vm.global.load.f32 @gf : f32
    %d = vm.global.load.i64 @g64 : i64
    vm.global.store.f32 %f, @gf : f32
    vm.global.store.i64 %d, @g64 : i64
    %l = vm.global.load.ref @gr : !vm.list<i32>
    vm.break ^bb2(%c: i32)
  ^bb2(%q: i32):
    %x = vm.call @other(%q) : (i32) -> i32
    vm.cond_br %x, ^bb3(%c : i32), ^bb4
  ^bb3(%w: i32):
    vm.return %w : i32
  ^bb4:
    %code = vm.const.i32 3
    vm.fail %code, "bad \"thing\"\n"
  }
  vm.func private @other(%c: i32) -> i32 {
    vm.return %c : i32
  }
}
