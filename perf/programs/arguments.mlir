// Programs for perf/arguments.py: arguments of other kinds than arrays of the same session, no work.
// iree-compile 3.13.0 --iree-hal-target-device=local --iree-hal-local-target-device-backends=llvm-cpu
//   --iree-llvmcpu-target-cpu=generic --iree-vm-bytecode-module-strip-source-map arguments.mlir -o arguments.vmfb
// With --iree-execution-model=async-external: arguments_async.vmfb; with --iree-hal-target-device=cuda --iree-cuda-target=sm_80 instead
//   of the first three flags: arguments_cuda.vmfb, arguments_async_cuda.vmfb
module @arguments {

  func.func @add(%x: tensor<16xf32>, %y: tensor<16xf32>) -> tensor<16xf32> {
    %0 = arith.addf %x, %y : tensor<16xf32>
    return %0 : tensor<16xf32>
  }

  func.func @into(%x: tensor<16xf32>, %out: tensor<16xf32> {iree.abi.output = 0 : index}) -> tensor<16xf32> {
    %0 = arith.addf %x, %x : tensor<16xf32>
    return %0 : tensor<16xf32>
  }

  func.func @twice(%x: tensor<16xf32>) -> tensor<16xf32> {
    %0 = arith.addf %x, %x : tensor<16xf32>
    return %0 : tensor<16xf32>
  }

  func.func @next(%x: tensor<16xf32> {iree.abi.consume}) -> tensor<16xf32> {
    %0 = arith.addf %x, %x : tensor<16xf32>
    return %0 : tensor<16xf32>
  }

  func.func @three(%x: tensor<16xf32>, %y: tensor<16xf32>, %z: tensor<16xf32>) -> tensor<16xf32> {
    %0 = arith.addf %x, %y : tensor<16xf32>
    %1 = arith.mulf %0, %z : tensor<16xf32>
    return %1 : tensor<16xf32>
  }

  // 320 kB of which little is read.
  func.func @large(%x: tensor<80000xf32>) -> tensor<16xf32> {
    %0 = tensor.extract_slice %x[0] [16] [1] : tensor<80000xf32> to tensor<16xf32>
    %1 = arith.addf %0, %0 : tensor<16xf32>
    return %1 : tensor<16xf32>
  }

  func.func @view(%x: !hal.buffer_view, %y: !hal.buffer_view) -> tensor<16xf32> {
    %0 = hal.tensor.import %x : !hal.buffer_view -> tensor<16xf32>
    %1 = hal.tensor.import %y : !hal.buffer_view -> tensor<16xf32>
    %2 = arith.addf %0, %1 : tensor<16xf32>
    return %2 : tensor<16xf32>
  }

  func.func @two(%x: tensor<16xf32>, %y: tensor<16xf32>) -> (tensor<16xf32>, tensor<16xf32>) {
    %0 = arith.addf %x, %y : tensor<16xf32>
    return %0, %x : tensor<16xf32>, tensor<16xf32>
  }

  func.func @scalar(%x: tensor<f32>, %y: tensor<f32>) -> tensor<f32> {
    %0 = arith.addf %x, %y : tensor<f32>
    return %0 : tensor<f32>
  }

  func.func @single(%a: f32, %b: f32) -> f32 {
    %0 = arith.addf %a, %b : f32
    return %0 : f32
  }

  func.func @bytes(%x: tensor<16xi8>) -> tensor<16xi8> {
    %0 = arith.addi %x, %x : tensor<16xi8>
    return %0 : tensor<16xi8>
  }

  func.func @half(%a: f16, %b: f16) -> f16 {
    return %b : f16
  }

  func.func @brain(%a: bf16, %b: bf16) -> bf16 {
    return %b : bf16
  }

  func.func @list(%values: !util.list<i32>) -> i32 {
    %c1 = arith.constant 1 : index
    %0 = util.list.get %values[%c1] : !util.list<i32> -> i32
    return %0 : i32
  }

  func.func @nested(%values: !util.list<?>) -> i32 {
    %c1 = arith.constant 1 : index
    %0 = util.list.get %values[%c1] : !util.list<?> -> !util.list<?>
    %1 = util.list.get %0[%c1] : !util.list<?> -> i32
    return %1 : i32
  }

  func.func @pair(%number: i32) -> !util.list<?> {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c2 = arith.constant 2 : index
    %0 = util.list.create %c2 : !util.list<?>
    util.list.resize %0, %c2 : !util.list<?>
    util.list.set %0[%c0], %number : i32 -> !util.list<?>
    util.list.set %0[%c1], %number : i32 -> !util.list<?>
    return %0 : !util.list<?>
  }

  func.func @mixed(%values: !util.list<?>) -> i32 {
    %c1 = arith.constant 1 : index
    %0 = util.list.get %values[%c1] : !util.list<?> -> i32
    return %0 : i32
  }
}
