from jitree import CustomModule, f32

module = CustomModule("activation")

@module.export(signature="array, f32 -> array")
def softsign(x, scale):
    return scale * x / (1 + abs(x))
@module.export(jit=True)
def decay(rate: f32, step: f32) -> f32:
    return rate / (1 + step)
