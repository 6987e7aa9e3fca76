// As the torch front end exports a function: `main` and `main$async`, without attributes.
module @torch_style {
  func.func @main(%a: !torch.vtensor<[4],f32>, %b: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {
    %one = torch.constant.int 1
    %r = torch.aten.add.Tensor %a, %b, %one
        : !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>, !torch.int -> !torch.vtensor<[4],f32>
    return %r : !torch.vtensor<[4],f32>
  }
}
