// Programs without tensors that time the execution of bytecode itself: `perf/vm.py`.
// Compile with: iree-compile --compile-mode=vm vm.mlir -o vm.vmfb
vm.module @vm {
  // a chain of three calls an iteration, 64-bit arguments and results
  vm.func private @inner(%a: i64, %b: i64) -> i64 attributes {inlining_policy = #util.inline.never} {
    %x = vm.xor.i64 %a, %b : i64
    vm.return %x : i64
  }
  vm.func private @middle(%a: i64, %b: i64) -> (i64, i64) attributes {inlining_policy = #util.inline.never} {
    %x = vm.call @inner(%b, %a) : (i64, i64) -> i64
    %y = vm.call @inner(%x, %x) : (i64, i64) -> i64
    vm.return %x, %y : i64, i64
  }
  vm.export @call_chain
  vm.func @call_chain(%n32: i32) -> i64 {
    %zero = vm.const.i64 0
    %one = vm.const.i64 1
    %n = vm.ext.i32.i64.s %n32 : i32 -> i64
    vm.br ^loop(%zero, %zero : i64, i64)
  ^loop(%i: i64, %sum: i64):
    %more = vm.cmp.lt.i64.s %i, %n : i64
    vm.cond_br %more, ^body, ^done
  ^body:
    %p:2 = vm.call @middle(%i, %sum) : (i64, i64) -> (i64, i64)
    %s1 = vm.add.i64 %p#0, %p#1 : i64
    %i1 = vm.add.i64 %i, %one : i64
    vm.br ^loop(%i1, %s1 : i64, i64)
  ^done:
    vm.return %sum : i64
  }

  // primes below n: byte stores with a stride, byte loads
  vm.export @sieve
  vm.func @sieve(%n32: i32) -> i64 {
    %c0 = vm.const.i64 0
    %c1 = vm.const.i64 1
    %c2 = vm.const.i64 2
    %one = vm.const.i32 1
    %align = vm.const.i32 16
    %n = vm.ext.i32.i64.s %n32 : i32 -> i64
    %flags = vm.buffer.alloc %n, %align : !vm.buffer
    vm.br ^outer(%c2, %c0 : i64, i64)
  ^outer(%i: i64, %count: i64):
    %more = vm.cmp.lt.i64.s %i, %n : i64
    vm.cond_br %more, ^test, ^done
  ^test:
    %flag = vm.buffer.load.i8.u %flags[%i] : !vm.buffer -> i32
    %i1 = vm.add.i64 %i, %c1 : i64
    %composite = vm.cmp.nz.i32 %flag : i32
    vm.cond_br %composite, ^outer(%i1, %count : i64, i64), ^prime
  ^prime:
    %count1 = vm.add.i64 %count, %c1 : i64
    %first = vm.add.i64 %i, %i : i64
    vm.br ^mark(%first : i64)
  ^mark(%j: i64):
    %inside = vm.cmp.lt.i64.s %j, %n : i64
    vm.cond_br %inside, ^set, ^outer(%i1, %count1 : i64, i64)
  ^set:
    vm.buffer.store.i8 %one, %flags[%j] : i32 -> !vm.buffer
    %next = vm.add.i64 %j, %i : i64
    vm.br ^mark(%next : i64)
  ^done:
    vm.return %count : i64
  }

  // Euclid on all pairs below n: remainders, swapping block arguments
  vm.export @gcd_sum
  vm.func @gcd_sum(%n: i32) -> i32 {
    %zero = vm.const.i32 0
    %one = vm.const.i32 1
    vm.br ^rows(%one, %zero : i32, i32)
  ^rows(%i: i32, %sum: i32):
    %more = vm.cmp.lt.i32.s %i, %n : i32
    vm.cond_br %more, ^columns(%one, %sum : i32, i32), ^done
  ^columns(%j: i32, %sum1: i32):
    %inside = vm.cmp.lt.i32.s %j, %n : i32
    vm.cond_br %inside, ^euclid(%i, %j : i32, i32), ^next
  ^euclid(%a: i32, %b: i32):
    %go = vm.cmp.nz.i32 %b : i32
    vm.cond_br %go, ^step, ^add
  ^step:
    %r = vm.rem.i32.u %a, %b : i32
    vm.br ^euclid(%b, %r : i32, i32)
  ^add:
    %sum2 = vm.add.i32 %sum1, %a : i32
    %j1 = vm.add.i32 %j, %one : i32
    vm.br ^columns(%j1, %sum2 : i32, i32)
  ^next:
    %i1 = vm.add.i32 %i, %one : i32
    vm.br ^rows(%i1, %sum1 : i32, i32)
  ^done:
    vm.return %sum : i32
  }

  // n x n matrices of f32 in buffers, the plain triple loop
  vm.export @matmul
  vm.func @matmul(%n32: i32) -> f32 {
    %c0 = vm.const.i64 0
    %c1 = vm.const.i64 1
    %width = vm.const.i64 4
    %align = vm.const.i32 16
    %half = vm.const.f32 0.5
    %third = vm.const.f32 0.375
    %zero = vm.const.f32 0.0
    %n = vm.ext.i32.i64.s %n32 : i32 -> i64
    %nn = vm.mul.i64 %n, %n : i64
    %bytes = vm.mul.i64 %nn, %width : i64
    %a = vm.buffer.alloc %bytes, %align : !vm.buffer
    %b = vm.buffer.alloc %bytes, %align : !vm.buffer
    %c = vm.buffer.alloc %bytes, %align : !vm.buffer
    vm.buffer.fill.f32 %a, %c0, %nn, %half : f32 -> !vm.buffer
    vm.buffer.fill.f32 %b, %c0, %nn, %third : f32 -> !vm.buffer
    vm.br ^i(%c0 : i64)
  ^i(%i: i64):
    %mi = vm.cmp.lt.i64.s %i, %n : i64
    vm.cond_br %mi, ^j(%c0 : i64), ^done
  ^j(%j: i64):
    %mj = vm.cmp.lt.i64.s %j, %n : i64
    vm.cond_br %mj, ^k(%c0, %zero : i64, f32), ^inext
  ^k(%k: i64, %acc: f32):
    %mk = vm.cmp.lt.i64.s %k, %n : i64
    vm.cond_br %mk, ^body, ^store
  ^body:
    %ia = vm.fma.i64 %i, %n, %k : i64
    %ib = vm.fma.i64 %k, %n, %j : i64
    %x = vm.buffer.load.f32 %a[%ia] : !vm.buffer -> f32
    %y = vm.buffer.load.f32 %b[%ib] : !vm.buffer -> f32
    %acc1 = vm.fma.f32 %x, %y, %acc : f32
    %k1 = vm.add.i64 %k, %c1 : i64
    vm.br ^k(%k1, %acc1 : i64, f32)
  ^store:
    %ic = vm.fma.i64 %i, %n, %j : i64
    vm.buffer.store.f32 %acc, %c[%ic] : f32 -> !vm.buffer
    %j1 = vm.add.i64 %j, %c1 : i64
    vm.br ^j(%j1 : i64)
  ^inext:
    %i1 = vm.add.i64 %i, %c1 : i64
    vm.br ^i(%i1 : i64)
  ^done:
    %last = vm.sub.i64 %nn, %c1 : i64
    %r = vm.buffer.load.f32 %c[%last] : !vm.buffer -> f32
    vm.return %r : f32
  }

  // typed list written and read back
  vm.export @list_sum
  vm.func @list_sum(%n: i32) -> i32 {
    %zero = vm.const.i32 0
    %one = vm.const.i32 1
    %list = vm.list.alloc %n : (i32) -> !vm.list<i32>
    vm.list.resize %list, %n : (!vm.list<i32>, i32)
    vm.br ^write(%zero : i32)
  ^write(%i: i32):
    %w = vm.cmp.lt.i32.s %i, %n : i32
    vm.cond_br %w, ^set, ^read(%zero, %zero : i32, i32)
  ^set:
    vm.list.set.i32 %list, %i, %i : (!vm.list<i32>, i32, i32)
    %i1 = vm.add.i32 %i, %one : i32
    vm.br ^write(%i1 : i32)
  ^read(%j: i32, %sum: i32):
    %r = vm.cmp.lt.i32.s %j, %n : i32
    vm.cond_br %r, ^get, ^done
  ^get:
    %v = vm.list.get.i32 %list, %j : (!vm.list<i32>, i32) -> i32
    %sum1 = vm.add.i32 %sum, %v : i32
    %j1 = vm.add.i32 %j, %one : i32
    vm.br ^read(%j1, %sum1 : i32, i32)
  ^done:
    vm.return %sum : i32
  }

  // a state machine in globals, chosen by a branch table
  vm.global.i32 mutable @state = 0 : i32
  vm.global.i64 mutable @ticks = 0 : i64
  vm.export @machine
  vm.func @machine(%n: i32) -> i64 {
    %zero = vm.const.i32 0
    %one = vm.const.i32 1
    %two = vm.const.i32 2
    %z64 = vm.const.i64 0
    %o64 = vm.const.i64 1
    %f64 = vm.const.i64 5
    vm.global.store.i32 %zero, @state : i32
    vm.global.store.i64 %z64, @ticks : i64
    vm.br ^loop(%zero : i32)
  ^loop(%i: i32):
    %more = vm.cmp.lt.i32.s %i, %n : i32
    vm.cond_br %more, ^step, ^done
  ^step:
    %i1 = vm.add.i32 %i, %one : i32
    %s = vm.global.load.i32 @state : i32
    %t = vm.global.load.i64 @ticks : i64
    vm.br_table %s {
      default: ^reset,
      0: ^to(%one, %o64 : i32, i64),
      1: ^to(%two, %f64 : i32, i64)
    }
  ^reset:
    vm.br ^to(%zero, %o64 : i32, i64)
  ^to(%next: i32, %add: i64):
    %t1 = vm.add.i64 %t, %add : i64
    vm.global.store.i32 %next, @state : i32
    vm.global.store.i64 %t1, @ticks : i64
    vm.br ^loop(%i1 : i32)
  ^done:
    %r = vm.global.load.i64 @ticks : i64
    vm.return %r : i64
  }

  // Newton's square roots in f64
  vm.export @newton
  vm.func @newton(%n: i32) -> f64 {
    %zero = vm.const.i32 0
    %one = vm.const.i32 1
    %half = vm.const.f64 0.5
    %z = vm.const.f64 0.0
    %eight = vm.const.i32 8
    %step = vm.const.f64 1.0
    vm.br ^outer(%zero, %step, %z : i32, f64, f64)
  ^outer(%i: i32, %x: f64, %sum: f64):
    %more = vm.cmp.lt.i32.s %i, %n : i32
    vm.cond_br %more, ^inner(%zero, %x : i32, f64), ^done
  ^inner(%k: i32, %g: f64):
    %go = vm.cmp.lt.i32.s %k, %eight : i32
    vm.cond_br %go, ^iterate, ^next
  ^iterate:
    %q = vm.div.f64 %x, %g : f64
    %s = vm.add.f64 %g, %q : f64
    %g1 = vm.mul.f64 %s, %half : f64
    %k1 = vm.add.i32 %k, %one : i32
    vm.br ^inner(%k1, %g1 : i32, f64)
  ^next:
    %sum1 = vm.add.f64 %sum, %g : f64
    %x1 = vm.add.f64 %x, %step : f64
    %i1 = vm.add.i32 %i, %one : i32
    vm.br ^outer(%i1, %x1, %sum1 : i32, f64, f64)
  ^done:
    vm.return %sum : f64
  }
}
