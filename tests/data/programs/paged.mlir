// As sharktank exports a model with a paged cache: the pages are a mutable argument, functions come in pairs and carry no
// declaration, scratch memory is the caller's. Compiled with --iree-input-type=torch --iree-torch-externalize-transients.
module @paged {
  func.func @decode_bs2(%token: !torch.vtensor<[2,4],f32>, %pages: !torch.vtensor<[2],si64>,
      %cache: !torch.tensor<[8,4],f32>) -> !torch.vtensor<[2,4],f32> attributes {torch.assume_strict_symbolic_shapes} {
    %zero = torch.constant.int 0
    %one = torch.constant.int 1
    %no = torch.constant.bool false
    %old = torch.copy.to_vtensor %cache : !torch.vtensor<[8,4],f32>
    %index = torch.prim.ListConstruct %pages : (!torch.vtensor<[2],si64>) -> !torch.list<optional<vtensor>>
    %new = torch.aten.index_put %old, %index, %token, %no : !torch.vtensor<[8,4],f32>, !torch.list<optional<vtensor>>,
        !torch.vtensor<[2,4],f32>, !torch.bool -> !torch.vtensor<[8,4],f32>
    torch.overwrite.tensor.contents %new overwrites %cache : !torch.vtensor<[8,4],f32>, !torch.tensor<[8,4],f32>
    %turned = torch.aten.transpose.int %new, %zero, %one
        : !torch.vtensor<[8,4],f32>, !torch.int, !torch.int -> !torch.vtensor<[4,8],f32>
    %scores = torch.aten.mm %token, %turned
        : !torch.vtensor<[2,4],f32>, !torch.vtensor<[4,8],f32> -> !torch.vtensor<[2,8],f32>
    %result = torch.aten.mm %scores, %new
        : !torch.vtensor<[2,8],f32>, !torch.vtensor<[8,4],f32> -> !torch.vtensor<[2,4],f32>
    return %result : !torch.vtensor<[2,4],f32>
  }
}
