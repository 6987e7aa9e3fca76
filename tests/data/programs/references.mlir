// References other than tensors.
module @references {
  func.func @list_size(%list: !util.list<?>) -> index {
    %n = util.list.size %list : !util.list<?>
    return %n : index
  }
  func.func @list_same(%list: !util.list<?>) -> !util.list<?> {
    return %list : !util.list<?>
  }
  func.func @pair(%x: i32, %y: tensor<2xf32>) -> !util.list<?> {
    %c2 = arith.constant 2 : index
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %list = util.list.create %c2 : !util.list<?>
    util.list.resize %list, %c2 : !util.list<?>
    util.list.set %list[%c0], %x : i32 -> !util.list<?>
    %view = hal.tensor.export %y : tensor<2xf32> -> !hal.buffer_view
    util.list.set %list[%c1], %view : !hal.buffer_view -> !util.list<?>
    return %list : !util.list<?>
  }
  func.func @view_rank(%view: !hal.buffer_view) -> index {
    %n = hal.buffer_view.rank<%view : !hal.buffer_view> : index
    return %n : index
  }
  func.func @buffer_same(%buffer: !util.buffer) -> !util.buffer {
    return %buffer : !util.buffer
  }
  func.func @buffer_length(%buffer: !hal.buffer) -> index {
    %n = hal.buffer.length<%buffer : !hal.buffer> : index
    return %n : index
  }
}
