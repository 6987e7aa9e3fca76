// iree-compile --iree-hal-target-backends=vmvx program.mlir -o program.vmfb     (release 3.13.0)
module @program {
  func.func private @activation.softsign(%x: tensor<?xf32>, %scale: f32) -> tensor<?xf32>
  func.func private @activation.decay(%rate: f32, %step: f32) -> f32

  func.func @layer(%x: tensor<?xf32>, %step: f32) -> tensor<?xf32> {
    %rate = arith.constant 4.0 : f32
    %scale = call @activation.decay(%rate, %step) : (f32, f32) -> f32
    %y = call @activation.softsign(%x, %scale) : (tensor<?xf32>, f32) -> tensor<?xf32>
    %z = arith.addf %y, %y : tensor<?xf32>
    return %z : tensor<?xf32>
  }
}
