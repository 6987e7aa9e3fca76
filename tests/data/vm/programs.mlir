// VM programs for tests/dispatch/test_compiled.py, compiled by
//   iree-compile --compile-mode=vm programs.mlir -o programs.vmfb
vm.module @programs {
  vm.rodata private @primes dense<[2, 3, 5, 7, 11, 13]> : tensor<6xi32>
  vm.global.i32 private mutable @calls = 0 : i32
  vm.global.ref private mutable @kept : !vm.list<i64>

  // Greatest common divisor, by a loop with block arguments that swap.
  vm.export @gcd
  vm.func @gcd(%a: i64, %b: i64) -> i64 {
    vm.br ^head(%a, %b : i64, i64)
  ^head(%x: i64, %y: i64):
    %more = vm.cmp.nz.i64 %y : i64
    vm.cond_br %more, ^body, ^end
  ^body:
    %rest = vm.rem.i64.s %x, %y : i64
    vm.br ^head(%y, %rest : i64, i64)
  ^end:
    vm.return %x : i64
  }

  vm.export @fibonacci
  vm.func private @fibonacci(%n: i32) -> i64 attributes {inlining_policy = #util.inline.never} {
    %c1 = vm.const.i32 1
    %c2 = vm.const.i32 2
    %small = vm.cmp.lt.i32.s %n, %c2 : i32
    vm.cond_br %small, ^end, ^more
  ^end:
    %n64 = vm.ext.i32.i64.s %n : i32 -> i64
    vm.return %n64 : i64
  ^more:
    %n1 = vm.sub.i32 %n, %c1 : i32
    %n2 = vm.sub.i32 %n, %c2 : i32
    %f1 = vm.call @fibonacci(%n1) : (i32) -> i64
    %f2 = vm.call @fibonacci(%n2) : (i32) -> i64
    %sum = vm.add.i64 %f1, %f2 : i64
    vm.return %sum : i64
  }

  // Sum of the constants, read through a copy of them.
  vm.export @sum_primes
  vm.func @sum_primes() -> i32 {
    %ref = vm.const.ref.rodata @primes : !vm.buffer
    %length = vm.buffer.length %ref : !vm.buffer -> i64
    %c0 = vm.const.i64 0
    %c1 = vm.const.i64 1
    %c4 = vm.const.i64 4
    %align = vm.const.i32 16
    %zero = vm.const.i32 0
    %copy = vm.buffer.clone %ref, %c0, %length, %align : !vm.buffer -> !vm.buffer
    %same = vm.buffer.compare %ref, %c0, %copy, %c0, %length : !vm.buffer, !vm.buffer
    %count = vm.div.i64.s %length, %c4 : i64
    vm.br ^head(%c0, %zero : i64, i32)
  ^head(%i: i64, %sum: i32):
    %more = vm.cmp.lt.i64.s %i, %count : i64
    vm.cond_br %more, ^body, ^end
  ^body:
    %value = vm.buffer.load.i32 %copy[%i] : !vm.buffer -> i32
    %next = vm.add.i32 %sum, %value : i32
    %j = vm.add.i64 %i, %c1 : i64
    vm.br ^head(%j, %next : i64, i32)
  ^end:
    %result = vm.mul.i32 %sum, %same : i32
    vm.return %result : i32
  }

  // A list of the squares below n, kept in a global; returns the one of the call before.
  vm.export @squares
  vm.func @squares(%n: i32) -> !vm.list<i64> {
    %c0 = vm.const.i32 0
    %c1 = vm.const.i32 1
    %old = vm.global.load.ref @kept : !vm.list<i64>
    %list = vm.list.alloc %n : (i32) -> !vm.list<i64>
    vm.list.resize %list, %n : (!vm.list<i64>, i32)
    vm.br ^head(%c0 : i32)
  ^head(%i: i32):
    %more = vm.cmp.lt.i32.s %i, %n : i32
    vm.cond_br %more, ^body, ^end
  ^body:
    %i64 = vm.ext.i32.i64.s %i : i32 -> i64
    %square = vm.mul.i64 %i64, %i64 : i64
    vm.list.set.i64 %list, %i, %square : (!vm.list<i64>, i32, i64)
    %j = vm.add.i32 %i, %c1 : i32
    vm.br ^head(%j : i32)
  ^end:
    vm.global.store.ref %list, @kept : !vm.list<i64>
    vm.return %old : !vm.list<i64>
  }

  vm.export @count_calls
  vm.func @count_calls() -> i32 {
    %c1 = vm.const.i32 1
    %old = vm.global.load.i32 @calls : i32
    %new = vm.add.i32 %old, %c1 : i32
    vm.global.store.i32 %new, @calls : i32
    vm.return %new : i32
  }

  // Days of the month, January being 0, as far as May.
  vm.export @day_length
  vm.func @day_length(%month: i32) -> i32 {
    %short = vm.const.i32 28
    %middle = vm.const.i32 30
    %long = vm.const.i32 31
    vm.br_table %month {
      default: ^day(%long : i32),
      0: ^day(%long : i32),
      1: ^day(%short : i32),
      2: ^day(%long : i32),
      3: ^day(%middle : i32)
    }
  ^day(%length: i32):
    vm.return %length : i32
  }

  vm.export @logistic
  vm.func @logistic(%x: f32) -> f32 {
    %one = vm.const.f32 1.0
    %negative = vm.neg.f32 %x : f32
    %e = vm.exp.f32 %negative : f32
    %sum = vm.add.f32 %e, %one : f32
    %y = vm.div.f32 %one, %sum : f32
    vm.return %y : f32
  }

  vm.export @refuse
  vm.func @refuse(%code: i32) {
    vm.cond_fail %code, "refused by the program"
    vm.return
  }

  // Gives way n times.
  vm.export @patience
  vm.func @patience(%n: i32) -> i32 {
    %c0 = vm.const.i32 0
    %c1 = vm.const.i32 1
    vm.br ^head(%c0 : i32)
  ^head(%i: i32):
    %more = vm.cmp.lt.i32.s %i, %n : i32
    vm.cond_br %more, ^wait, ^end
  ^wait:
    vm.yield ^next
  ^next:
    %j = vm.add.i32 %i, %c1 : i32
    vm.br ^head(%j : i32)
  ^end:
    vm.return %i : i32
  }
}
