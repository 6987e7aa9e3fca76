// A program for two devices: a sum made on each, and what the first has made moved to the second.
// iree-compile 3.13 --iree-hal-target-device=local[0] --iree-hal-target-device=local[1]
//   --iree-hal-local-target-device-backends=llvm-cpu --iree-llvmcpu-target-cpu=generic
//   --iree-llvmcpu-debug-symbols=false two_devices.mlir -o two_devices.vmfb
func.func @both(
    %a: tensor<4xf32> {iree.abi.affinity = #hal.device.promise<@__device_0>},
    %b: tensor<4xf32> {iree.abi.affinity = #hal.device.promise<@__device_1>})
    -> (tensor<4xf32> {iree.abi.affinity = #hal.device.promise<@__device_0>},
        tensor<4xf32> {iree.abi.affinity = #hal.device.promise<@__device_1>}) {
  %first = arith.addf %a, %a : tensor<4xf32>
  %second = arith.addf %b, %b : tensor<4xf32>
  return %first, %second : tensor<4xf32>, tensor<4xf32>
}
func.func @moved(%a: tensor<4xf32> {iree.abi.affinity = #hal.device.promise<@__device_0>})
    -> (tensor<4xf32> {iree.abi.affinity = #hal.device.promise<@__device_1>}) {
  %sum = arith.addf %a, %a : tensor<4xf32>
  %moved = flow.tensor.transfer %sum : tensor<4xf32> to #hal.device.promise<@__device_1>
  return %moved : tensor<4xf32>
}
