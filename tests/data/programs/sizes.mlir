// Tensors of any size, which no kernel writes to: programs compute their byte lengths in 64 bits, and those wrap.
module @sizes {
  func.func @vector(%n: index) -> tensor<?xf32> {
    %0 = tensor.empty(%n) : tensor<?xf32>
    return %0 : tensor<?xf32>
  }
  func.func @matrix(%n: index, %m: index) -> tensor<?x?xi8> {
    %0 = tensor.empty(%n, %m) : tensor<?x?xi8>
    return %0 : tensor<?x?xi8>
  }
}
