// Programs for perf/cuda_programs.py, compiled to cuda.vmfb by
//   iree-compile cuda.mlir -o cuda.vmfb --iree-hal-target-device=cuda --iree-cuda-target=sm_80
// Those of models.mlir, compiled in the same way, are models_cuda.vmfb.

// A loop whose condition is computed on the device and read by the host in every step.
func.func @newton(%start: tensor<256xf32>, %steps: tensor<i32>) -> tensor<256xf32> {
  %zero = arith.constant dense<0> : tensor<i32>
  %one = arith.constant dense<1> : tensor<i32>
  %half = arith.constant dense<0.5> : tensor<256xf32>
  %two = arith.constant dense<2.0> : tensor<256xf32>
  %result:2 = scf.while (%i = %zero, %x = %start) : (tensor<i32>, tensor<256xf32>) -> (tensor<i32>, tensor<256xf32>) {
    %more = arith.cmpi slt, %i, %steps : tensor<i32>
    %condition = tensor.extract %more[] : tensor<i1>
    scf.condition(%condition) %i, %x : tensor<i32>, tensor<256xf32>
  } do {
  ^bb0(%i: tensor<i32>, %x: tensor<256xf32>):
    %next = arith.addi %i, %one : tensor<i32>
    %quotient = arith.divf %two, %x : tensor<256xf32>
    %sum = arith.addf %x, %quotient : tensor<256xf32>
    %root = arith.mulf %sum, %half : tensor<256xf32>
    scf.yield %next, %root : tensor<i32>, tensor<256xf32>
  }
  return %result#1 : tensor<256xf32>
}

// A hundred small dispatches, each of which needs the one before.
func.func @chain(%start: tensor<32x32xf32>, %factor: tensor<32x32xf32>) -> tensor<32x32xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<32x32xf32>
  %filled = linalg.fill ins(%zero : f32) outs(%empty : tensor<32x32xf32>) -> tensor<32x32xf32>
  %0 = linalg.matmul ins(%start, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %1 = linalg.matmul ins(%0, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %2 = linalg.matmul ins(%1, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %3 = linalg.matmul ins(%2, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %4 = linalg.matmul ins(%3, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %5 = linalg.matmul ins(%4, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %6 = linalg.matmul ins(%5, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %7 = linalg.matmul ins(%6, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %8 = linalg.matmul ins(%7, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %9 = linalg.matmul ins(%8, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %10 = linalg.matmul ins(%9, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %11 = linalg.matmul ins(%10, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %12 = linalg.matmul ins(%11, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %13 = linalg.matmul ins(%12, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %14 = linalg.matmul ins(%13, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %15 = linalg.matmul ins(%14, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %16 = linalg.matmul ins(%15, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %17 = linalg.matmul ins(%16, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %18 = linalg.matmul ins(%17, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %19 = linalg.matmul ins(%18, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %20 = linalg.matmul ins(%19, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %21 = linalg.matmul ins(%20, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %22 = linalg.matmul ins(%21, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %23 = linalg.matmul ins(%22, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %24 = linalg.matmul ins(%23, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %25 = linalg.matmul ins(%24, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %26 = linalg.matmul ins(%25, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %27 = linalg.matmul ins(%26, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %28 = linalg.matmul ins(%27, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %29 = linalg.matmul ins(%28, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %30 = linalg.matmul ins(%29, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %31 = linalg.matmul ins(%30, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %32 = linalg.matmul ins(%31, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %33 = linalg.matmul ins(%32, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %34 = linalg.matmul ins(%33, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %35 = linalg.matmul ins(%34, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %36 = linalg.matmul ins(%35, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %37 = linalg.matmul ins(%36, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %38 = linalg.matmul ins(%37, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %39 = linalg.matmul ins(%38, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %40 = linalg.matmul ins(%39, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %41 = linalg.matmul ins(%40, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %42 = linalg.matmul ins(%41, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %43 = linalg.matmul ins(%42, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %44 = linalg.matmul ins(%43, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %45 = linalg.matmul ins(%44, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %46 = linalg.matmul ins(%45, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %47 = linalg.matmul ins(%46, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %48 = linalg.matmul ins(%47, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %49 = linalg.matmul ins(%48, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %50 = linalg.matmul ins(%49, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %51 = linalg.matmul ins(%50, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %52 = linalg.matmul ins(%51, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %53 = linalg.matmul ins(%52, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %54 = linalg.matmul ins(%53, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %55 = linalg.matmul ins(%54, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %56 = linalg.matmul ins(%55, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %57 = linalg.matmul ins(%56, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %58 = linalg.matmul ins(%57, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %59 = linalg.matmul ins(%58, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %60 = linalg.matmul ins(%59, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %61 = linalg.matmul ins(%60, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %62 = linalg.matmul ins(%61, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %63 = linalg.matmul ins(%62, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %64 = linalg.matmul ins(%63, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %65 = linalg.matmul ins(%64, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %66 = linalg.matmul ins(%65, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %67 = linalg.matmul ins(%66, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %68 = linalg.matmul ins(%67, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %69 = linalg.matmul ins(%68, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %70 = linalg.matmul ins(%69, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %71 = linalg.matmul ins(%70, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %72 = linalg.matmul ins(%71, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %73 = linalg.matmul ins(%72, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %74 = linalg.matmul ins(%73, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %75 = linalg.matmul ins(%74, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %76 = linalg.matmul ins(%75, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %77 = linalg.matmul ins(%76, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %78 = linalg.matmul ins(%77, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %79 = linalg.matmul ins(%78, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %80 = linalg.matmul ins(%79, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %81 = linalg.matmul ins(%80, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %82 = linalg.matmul ins(%81, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %83 = linalg.matmul ins(%82, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %84 = linalg.matmul ins(%83, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %85 = linalg.matmul ins(%84, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %86 = linalg.matmul ins(%85, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %87 = linalg.matmul ins(%86, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %88 = linalg.matmul ins(%87, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %89 = linalg.matmul ins(%88, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %90 = linalg.matmul ins(%89, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %91 = linalg.matmul ins(%90, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %92 = linalg.matmul ins(%91, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %93 = linalg.matmul ins(%92, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %94 = linalg.matmul ins(%93, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %95 = linalg.matmul ins(%94, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %96 = linalg.matmul ins(%95, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %97 = linalg.matmul ins(%96, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %98 = linalg.matmul ins(%97, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %99 = linalg.matmul ins(%98, %factor : tensor<32x32xf32>, tensor<32x32xf32>)
      outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  return %99 : tensor<32x32xf32>
}
